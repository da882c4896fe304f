"""How features emerge (chapter of the same name): what one neuron and two layers learn by the covariance operator.

theory: what single nodes come to stand for, centres at equal angles, two layers (Eq. 8 and 65 of [tian2021iclr]), and one linear
neuron beside a scrambled subspace.  ring: the objects pair (11) and gap (101), and one neuron.  runs: networks trained, those of
Figures 7 and 8 and on the ring.
"""
