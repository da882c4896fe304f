"""Intervals, errors of checks, random numbers for each replica, and metrics."""
