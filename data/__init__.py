"""What the book holds its numbers to: ``claims.yml``, ``expected/`` and ``results/``.

In a checkout this is the folder ``data/``; in an installed package it is ``sslchapters.data``, and
``importlib.resources.files("sslchapters.data")`` finds it in both.
"""
