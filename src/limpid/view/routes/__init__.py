"""Which address is answered by what: a file for each subject."""
