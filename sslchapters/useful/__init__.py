"""Chapter *Why are survivors useful?*: the augmentation graph of a finite population, and what a linear probe reads from it."""
