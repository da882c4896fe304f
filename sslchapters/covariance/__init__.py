"""The covariance operator (chapter of the same name).

``checks``: the theorems on finite populations, by enumeration, and the residue of Theorem 4.  ``runs``: real SimCLR steps.
``drawing``: the pictures.
"""
