"""Contrastive losses: of pairs of distances, of a whole batch, and as energies."""
