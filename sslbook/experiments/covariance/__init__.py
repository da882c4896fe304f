"""The covariance operator (chapter of the same name).

``reference``: finite populations, by enumeration.  ``checks``: the theorems, and the residue of Theorem 4.  ``runs``: real SimCLR
steps.  ``drawing``: the pictures.
"""
