"""Faults of tuning, their twins without the mistake, and honest runs that look like them, under the doctor's eyes."""
