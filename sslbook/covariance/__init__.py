"""The covariance operator (chapter of the same name): identities, residue, and a real SimCLR step.

The operator itself is shared ground, in :mod:`sslbook.operators`; its makers are repeated here because this is where readers look.
"""

from sslbook.mixing import Mixing
from sslbook.operators import (
    CovarianceOperator,
    EigenPairs,
    covariance_operator,
    intra_operator,
    pair_weights,
)

__all__ = ["CovarianceOperator", "EigenPairs", "Mixing", "covariance_operator", "intra_operator", "pair_weights"]
