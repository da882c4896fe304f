"""Learning without negatives: BatchNorm, the predictor, the moving average (Section 5 of [tian2021iclr]).

instances, theory, reference, checks: random towers, the formulas, autograd's steps, and the two compared.
batchnorm_mean_halves: the two halves of BatchNorm's mean in training.  networks, runs, tables, records: the ablations on images.
"""
