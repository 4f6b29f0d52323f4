"""The account of the loss's rounding error against the loss in float64: python -m benchmarks.rounding_account [NAME …].

Every architecture of benchmarks.architectures in bf16, bf16 autocast and fp32, with weights of several seeds: what the
account says, what is measured, and what share of it is left over. A row where contributions cancel is marked.
"""

import argparse
import statistics
import warnings

import torch
import transformers
from benchmarks.architectures import ALL
from torch import nn

import limpid
from limpid.errors import LimpidError
from limpid.operations.account import Account

FORMATS = ("bf16", "autocast", "fp32")
WITHIN = 0.05


def accounted(name: str, form: str, seed: int, spread: float | None = 0.2) -> Account:
    """The account of one step, with the measured deviation."""
    torch.manual_seed(seed)
    model, loss_of = ALL[name]()
    for weight in model.parameters() if spread else ():
        nn.init.normal_(weight, std=spread) if weight.ndim > 1 else None
    model = model.to(torch.bfloat16) if form == "bf16" else model

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
            return loss_of(model)

    with limpid.recording(model) as recorded:
        loss().backward()
        exact = recorded.in_float64(loss)
    return recorded.verify().error_of("loss", exact)


def main() -> None:
    """Print a row for each step, and how many are within."""
    parser = argparse.ArgumentParser(description="The account of the loss's rounding error against float64.")
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(ALL))
    parser.add_argument("--format", nargs="+", default=FORMATS, dest="forms")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--weights", choices=("wide", "own"), default="own", help="drawn with deviation 0.2, or as they begin"
    )
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    shares: list[float] = []
    print(
        "| architecture | format | seed | accounted | inherited | measured | left over | cancels |\n" + "|---" * 8 + "|"
    )
    for name in given.names:
        for form in given.forms:
            for seed in range(given.seeds):
                try:
                    found = accounted(name, form, seed, 0.2 if given.weights == "wide" else None)
                except (RuntimeError, LimpidError) as error:
                    print(
                        f"| {name} | {form} | {seed} | not computed: {str(error).splitlines()[0][:60]} | | | | |",
                        flush=True,
                    )
                    continue
                assert found.measured is not None
                assert found.remainder is not None
                share = abs(found.remainder / found.measured) if found.measured else 0.0
                shares += [] if found.cancels else [share]
                print(
                    f"| {name} | {form} | {seed} | {found.total:+.3e} | {found.inherited:+.1e} | {found.measured:+.3e} "
                    f"| {100 * share:.1f}% | {'yes' if found.cancels else ''} |",
                    flush=True,
                )
    within = sum(share <= WITHIN for share in shares)
    print(f"\n{within} of {len(shares)} that do not cancel within {WITHIN:.0%}, median {statistics.median(shares):.2%}")


if __name__ == "__main__":
    main()
