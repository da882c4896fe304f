"""The covariance operator of a layer: the network opened there, the loss as weights of views, products and eigenpairs."""
