"""Recorded runs, data files, and printed tables beside ours."""
