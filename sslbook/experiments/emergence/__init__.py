"""How features emerge (chapter of the same name): what one neuron and two layers learn by the covariance operator.

preserved: one linear neuron and a scrambled subspace.  ring, ringnet: the objects 11 and 101, for a neuron and for a small
convolutional network.  theory: what single nodes come to stand for, and two layers, Eq. 8 and 65 of [tian2021iclr].
two_layer: the training runs of Figures 7 and 8.
"""
