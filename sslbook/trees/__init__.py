"""Latent trees: their kinds and samples, the tree-shaped ReLU network, and its exact statistics."""
