"""The step, repeated: loop, precision, update, checkpoints, recording."""
