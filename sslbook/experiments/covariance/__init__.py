"""The covariance operator (chapter of the same name).

``reference``: finite populations, by enumeration.  ``checks``: the theorems.  ``residue``: what Theorem 4 leaves over.  ``step``: a
real SimCLR step.  ``drawing``: the pictures.
"""
