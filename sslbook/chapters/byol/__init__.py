"""Learning without negatives: BatchNorm, the predictor, the moving average (Section 5 of [tian2021iclr]).

towers, terms: two towers on a finite population, and the terms of their update.  collapse: Eq. 11.  theorem8: Theorem 8, its
hypotheses, batches, the deviation.  contrast: Corollary 1.  predictor: Corollary 2.  ema: Theorem 9.  halves: the two halves of
BatchNorm's mean in training.  siamese, views, ablation, probe, tables, recorded: the ablations on images.
"""
