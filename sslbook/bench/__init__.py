"""Benchmarks: every speed is a ratio, or stands beside what it is compared with; run with ``sslbook bench NAME``."""
