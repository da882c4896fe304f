"""Chapter ``dual_networks``: two networks, one input pair, and the connection between them.

``theory``: reversible layers.  ``checks``: gradients against autograd.  ``toy``: the network that is followed by hand.
"""
