"""PyTorch's own samples of its operations, each done again: python -m benchmarks.operation_samples [NAME …].

Up to 12 samples of every operation in `torch.testing`'s list that takes float32 on the processor, forward and backward
of the sum of its results. PyTorch is taken to be right, so a verdict beyond rounding is a false one, or a deviation of
PyTorch to be looked at. First `pip install -c constraints.txt expecttest`, which that list imports.
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

import limpid
from limpid.operations.call import Call

SAMPLES = 12
SHOWN = 3


@dataclass
class Tried:
    """What came of an operation's samples."""

    name: str
    samples: int = 0
    refused: int = 0  # PyTorch itself raised
    wrong: list[Call] = field(default_factory=list)
    unchecked: list[Call] = field(default_factory=list)


def total(results: Iterable[Any]) -> Tensor | None:
    """The sum of all entries that have a gradient, real and imaginary parts alike."""
    parts = [one for one in results if isinstance(one, Tensor) and one.requires_grad]
    sums = [(torch.view_as_real(one.resolve_conj()) if one.is_complex() else one).sum() for one in parts]
    return torch.stack(sums).sum() if sums else None


def tried(operation: Any) -> Tried:
    """Record its samples, one after the other."""
    found = Tried(operation.formatted_name)
    torch.manual_seed(0)
    grows = operation.supports_autograd
    for sample in islice(operation.sample_inputs("cpu", torch.float32, requires_grad=grows), SAMPLES):
        found.samples += 1
        with limpid.recording(nn.Identity()) as recorded:
            try:
                whole = total(tree_leaves(operation(sample.input, *sample.args, **sample.kwargs)))
                if whole is not None:
                    whole.backward()
            except Exception:  # whatever it is that this machine or this sample lacks
                found.refused += 1
        report = recorded.verify()
        found.wrong += report.wrong
        found.unchecked += report.unchecked
    return found


def main() -> None:
    """Print what is not wholly checked, then the counts."""
    parser = argparse.ArgumentParser(description="PyTorch's own samples of its operations, each done again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="operations of torch.testing's list; all of them")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    all_ = []
    reasons: Counter[str] = Counter()
    for operation in op_db:
        if given.names and operation.name not in given.names:
            continue
        if not operation.supports_dtype(torch.float32, "cpu"):
            continue
        one = tried(operation)
        all_.append(one)
        for call in one.wrong[:SHOWN]:
            print(f"{one.name}: {call}", flush=True)
        own = {f"{call.operation}: {call.why}" for call in one.unchecked}
        for reason in sorted(own):
            print(f"{one.name}: not checked, {reason}", flush=True)
        reasons.update(own)
    samples, refused = (sum(one.samples for one in all_), sum(one.refused for one in all_))
    print(f"{len(all_)} operations, {samples} samples ({refused} that PyTorch refuses)")
    print(f"wholly checked: {sum(not one.wrong and not one.unchecked for one in all_)}")
    print(f"with a verdict beyond rounding: {sum(bool(one.wrong) for one in all_)}")
    print(f"with calls not checked: {sum(bool(one.unchecked) for one in all_)}")
    for reason, count in reasons.most_common(40):
        print(f"  {count} × {reason}")


if __name__ == "__main__":
    main()
