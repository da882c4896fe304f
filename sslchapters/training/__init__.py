"""Chapters ``training`` and ``survives``: the tables on CIFAR-10 and STL-10, their presets, and runs that the chapters look into."""
