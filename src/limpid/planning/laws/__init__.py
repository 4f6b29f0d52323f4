"""Scaling laws: published ones, one fitted to your own runs, and the runs to fit it to."""
