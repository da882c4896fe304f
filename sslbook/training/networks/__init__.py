"""Networks that are trained: the ResNet-18, projectors and predictors, and the two towers."""
