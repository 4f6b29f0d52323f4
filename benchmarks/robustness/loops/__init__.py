"""Training loops that the doctor's authors had not seen: honest ones, and ones with a mistake."""
