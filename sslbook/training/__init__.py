"""The training side: SimCLR and BYOL with ResNets on real images."""
