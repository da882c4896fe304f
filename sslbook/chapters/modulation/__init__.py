r"""Two-layer networks under contrastive learning: global modulation, Sections 4 and 5 of [tian2023].

- :mod:`dynamics`: Lemmas 4 and 6, Theorem 4, against autograd
- :mod:`decomposition`: Lemma 5, Theorem 5, Corollary 3, against enumeration
- :mod:`crowd`: Theorem 5 followed, for fields that see more noise than class
- :mod:`basin`: Theorem 6, and the probability that a favoured direction wins (Eqs. 155 to 157)
- :mod:`tokens`: sequences made by generators with wildcards, the world of the paper's experiments
- :mod:`reference`: the network and its losses written plainly, for autograd
- :mod:`network`: one step, forward and backward, on tables of tokens
- :mod:`training`: the experiments; all replicas of one shape train as one batch
- :mod:`scores`: how well filters match the tokens that generators fix
- :mod:`tables`, :mod:`recorded`: Table 1, Figures 4, 5, 9, 10 and 11
- :mod:`patches`: filters of real images, Figures 12 and 13
"""
