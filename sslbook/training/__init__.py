"""Self-supervised training, of the papers' networks and of your own, on one processor, one GPU or several.

augment: views.  objectives: what is minimised.  evaluate: what features are worth.  run: settings, the parts that are made of
them, checkpoints, and the loop.  papers, cluster: the papers' runs and tables.  pretrain: the same loop with a network of your own.
"""
