"""Learning without negatives: BatchNorm, the predictor, the moving average (Section 5 of [tian2021iclr]).

instances: also the two halves of BatchNorm's mean in training.  runs: small networks on images, many replicas at once.
records: the ablations as cells to run.
"""
