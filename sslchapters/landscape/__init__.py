"""One layer of filters under a contrastive loss: energy, optima, stability ([tian2023], Sections 2 and 3).

``theory``: energies, filters, kernels and their limit; points and mixtures that are drawn.  ``optima``: all maxima, on finite sets
and on the circle.  ``stability``: critical points, roughness, power iteration.
"""
