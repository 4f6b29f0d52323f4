"""A trained model examined: what its parts compute on a text, and the shape of its loss around the weights."""
