"""python -m limpid.doctor.expected: the table of all that can be said of a loop, as docs/expected.md has it."""

from limpid.doctor.expected.expected import table
from limpid.terminal import say

if __name__ == "__main__":
    say(table())
