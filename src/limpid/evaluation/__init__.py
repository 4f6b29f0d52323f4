"""How good a model is: loss, bits per byte, calibration and answers to tasks, each with its interval."""
