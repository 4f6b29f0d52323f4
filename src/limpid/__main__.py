"""The `limpid` command, and `python -m limpid`: Ctrl-C ends it quietly from its first import on."""

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        if sys.argv[1:2] in (["train"], ["tune"]):
            from limpid.training.allocator import start_again_with_compact_heap

            start_again_with_compact_heap()
        from limpid.cli import main
        from limpid.garbage import leave_the_end_unsearched

        leave_the_end_unsearched()
        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
