"""limpid trains transformer language models and opens any training step."""

__version__ = "0.1.0"
