"""Chapters ``training`` and ``survives``: the tables on CIFAR-10 and STL-10, their presets, runs that the chapters look into."""
