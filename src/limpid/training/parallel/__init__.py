"""A model divided among processes along the axes of a mesh, by PyTorch's own engine."""
