"""Decoding on the processor: weights laid out for it, kernels compiled by numba, one call per position."""
