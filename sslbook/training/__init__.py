"""The papers' full runs: SimCLR and BYOL with a ResNet-18 on CIFAR-10 and STL-10, on one processor, one GPU or several."""
