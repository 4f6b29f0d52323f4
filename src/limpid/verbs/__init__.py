"""The verbs of the command line, a file each: what it can be asked, and the few lines that hand that to its room."""
