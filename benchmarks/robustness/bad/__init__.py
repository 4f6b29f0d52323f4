"""Bad inputs: what they are made of, and the room in which they are tried."""
