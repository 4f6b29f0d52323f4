"""Cases by where they happen: limpid's own runs, loops written by hand, logs of other tools. Each file adds its own."""
