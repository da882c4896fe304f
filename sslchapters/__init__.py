"""What the chapters call: claims, figures, records, tables; and a folder of mathematics for each chapter.

The names of ``__init__.pyi`` are loaded when they are first used, so that tools which read
executed notebooks (the regression, the ledger) pay neither for torch nor for matplotlib.
"""

from sslbook._check import offer

__getattr__, __dir__ = offer(__name__, __file__)
