"""Self-supervised training, of the papers' networks and of your own, on one processor, one GPU or several.

augment: views.  objectives: what is minimised.  evaluate: what features are worth, and whether they have collapsed.  run:
settings, the parts that are made of them, checkpoints, and the loop.  papers: the papers' runs, ``sslbook train`` and ``sslbook
runs``.  cluster: many of them at once.  pretrain: the same loop with a network of your own.
"""
