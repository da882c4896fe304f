"""The book's machinery: what chapters call, and what executes, holds and renders them.

Chapters need only the names of ``__init__.pyi``. They are loaded when they are first used, so that tools which read
executed notebooks (the regression, the ledger) pay neither for torch nor for matplotlib.
"""

from sslbook.exports import offer

__getattr__, __dir__ = offer(__name__, __file__)
