"""Small networks, BatchNorm taken apart, and the towers of self-supervised training."""
