"""The papers' own runs: presets, tables, clusters, and `sslbook train`."""
