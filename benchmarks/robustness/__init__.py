"""Cases that limpid's authors have not seen: what it says of them, and whether that is right."""
