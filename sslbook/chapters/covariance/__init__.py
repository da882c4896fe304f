"""The covariance operator (chapter of the same name): identities, kernel, population, residue, and a real SimCLR step."""
