"""python -m benchmarks.alignment estimators|preferences|policies|evaluated|trl|ppo [WORD …]: see docs/alignment.md."""

import argparse
import importlib

KNOWN = ("estimators", "preferences", "policies", "evaluated", "trl", "ppo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=KNOWN)
    parser.add_argument("words", nargs="*", metavar="WORD")
    given = parser.parse_args()
    importlib.import_module(f"benchmarks.alignment.{given.what}").main(given.words)


if __name__ == "__main__":
    main()
