"""One operator, many losses (chapter of the same name).

identities: the theorem on random networks, for each loss.  coordinates: losses with a table for each coordinate.
towers: targets that are held, and two networks.
explained: how much of a real SimCLR step each operator explains, on identical batches.
"""
