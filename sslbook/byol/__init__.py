"""Learning without negatives: BatchNorm, the predictor, the moving average (Section 5 of [tian2021iclr])."""
