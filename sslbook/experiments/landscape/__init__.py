"""One layer of filters under a contrastive loss: energy, optima, stability ([tian2023], Sections 2 and 3).

``instances``: points and mixtures that are drawn.  ``theory``: energies, filters, kernels and their limit.  ``optima``: all maxima,
on finite sets and on the circle.  ``stability``: critical points, roughness, power iteration.
"""
