"""The catalogue of every equation: generated from the operations, measured when asked."""
