"""Every layout of up to four processes held against one process: numbers, memory, messages."""
