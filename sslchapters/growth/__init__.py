"""What grows, amount or share (chapter of the same name).

``worlds``: small finite worlds in which growth is exact, and the law's formulas.  ``dose``: digits with planted directions, and
networks that are trained on them.  ``zero``: the share at which growth is zero, in many random networks.
"""
