"""python -m benchmarks.alignment estimators|preferences|policies|evaluated|trl|ppo [WORD …]: see docs/alignment.md."""

import importlib
import sys

KNOWN = ("estimators", "preferences", "policies", "evaluated", "trl", "ppo")


def main() -> None:
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    if asked not in KNOWN:
        sys.exit(f"{__doc__}\nasked for {asked!r}: choose one of {', '.join(KNOWN)}")
    importlib.import_module(f"benchmarks.alignment.{asked}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
