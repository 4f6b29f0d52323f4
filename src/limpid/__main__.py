"""The `limpid` command, and `python -m limpid`: Ctrl-C ends it quietly from its first import on."""

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from limpid.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
