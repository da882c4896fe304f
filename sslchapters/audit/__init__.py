"""What only the audit pages and ``sslbook table`` need: the papers' tables beside ours, and the records that hold them.

A module here may use any chapter's; no chapter uses one of these.
"""
