"""Backward passes by hand: 20 that are right, 20 of the same that are wrong, 9 that are another gradient on purpose."""
