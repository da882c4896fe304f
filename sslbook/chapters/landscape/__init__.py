"""One layer of filters under a contrastive loss: energy, optima, stability ([tian2023], Sections 2 and 3)."""
