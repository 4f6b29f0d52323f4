"""What is minimised: pure functions of log-probabilities."""
