"""Fused kernels of the fast path: each in a file of its own, with its backward pass, and what it never forms."""
