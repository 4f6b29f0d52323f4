"""By how much rounding moved a gradient, and which calls of the step did it: a reverse pass over the step itself."""
