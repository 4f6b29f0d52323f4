"""Backward passes to be derived by the reader, and held against finite differences."""
