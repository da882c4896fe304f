"""Chapter ``dual_networks``: two networks, one input pair, and the connection between them."""
