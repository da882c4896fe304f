"""The covariance operator (chapter of the same name).

``checks``: the theorems on finite populations, by enumeration, and the residual term of Theorem 4.  ``runs``: real SimCLR steps.
"""
