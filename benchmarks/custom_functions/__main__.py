"""Whether a recording finds backward passes that are wrong, and accuses none that is right.

python -m benchmarks.custom_functions [--seed N]
"""

import argparse
from collections import Counter
from types import ModuleType

import torch
from benchmarks.custom_functions import deliberate, right, wrong
from benchmarks.custom_functions.steps import FORMATS, NAMES, net_of, step

import limpid
from limpid.adjoints.adjoint import Adjoint, Verdict

ON_PURPOSE = [name for name, one in vars(deliberate).items() if getattr(one, "__module__", "") == deliberate.__name__]
RANK = [Verdict.WRONG, Verdict.SURROGATE, Verdict.UNCHECKED, Verdict.HOLDS]


def judged(functions: ModuleType, name: str, form: str, seed: int) -> Adjoint:
    """What is said of a Function in a step; of several calls the worst."""
    net = net_of(functions, name, seed)
    net = net.double() if form == "fp64" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with limpid.recording(net, optimizer) as recorded:
        step(net, optimizer, form, seed + 1)
    return min(recorded.verify().adjoints, key=lambda one: RANK.index(one.verdict))


def main() -> None:
    """Print a row for each Function, then counts."""
    parser = argparse.ArgumentParser(description="Backward passes by hand: wrong ones found, right ones accused.")
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    for functions, names in ((right, NAMES), (wrong, NAMES), (deliberate, ON_PURPOSE)):
        kind = functions.__name__.rpartition(".")[2]
        counts = Counter[str]()
        print(f"\n| {kind} | {' | '.join(FORMATS)} |\n|{'---|' * (len(FORMATS) + 1)}")
        for name in names:
            found = [judged(functions, name, form, seed) for form in FORMATS]
            counts.update(str(one.verdict) for one in found)
            print(f"| {name} | {' | '.join(str(one.verdict) for one in found)} |", flush=True)
        print(f"{kind}: {', '.join(f'{count} {verdict}' for verdict, count in counts.most_common())}")


if __name__ == "__main__":
    main()
