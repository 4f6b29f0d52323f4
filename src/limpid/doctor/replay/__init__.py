"""A step that broke, made again: where the first non-finite number arises, and what prevents it."""
