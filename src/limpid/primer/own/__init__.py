"""Exercises with numbers of a step that the reader recorded, graded against its trace."""
