"""Chapter ``dual_networks``: two networks, one input pair, and the connection between them.

``checks``: reversible layers, and gradients against autograd.  ``toy``: the network that is followed by hand.
"""
