"""Self-supervised training, of the papers' networks and of your own, on one processor, one GPU or several.

views: augmentation.  networks: the ResNet-18, heads, and the two towers.  objectives: what is minimised.  evaluate: what features
are worth.  runs: settings, steps, checkpoints, and the loop.  pretrain: the same loop with a network and images of your own, which
pictures reads.  The papers' own runs, their presets and tables, lie in :mod:`sslbook.experiments.training`.
"""
