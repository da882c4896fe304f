"""One operator, many losses (chapter of the same name).

``checks``: the theorem on random networks, for each loss; losses with a table for each coordinate; held targets, two networks.
``runs``: how much of a real SimCLR step each operator explains, on identical batches of digits, and for the record of photographs.
"""
