"""A corpus as a whole: what it holds, what in it is there twice, and what of it stands in tests."""
