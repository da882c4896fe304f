"""Benchmarks: `sslbook bench NAME` runs the module of that name."""
