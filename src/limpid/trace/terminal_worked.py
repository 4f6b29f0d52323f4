"""The worked model's step told in full: every quantity, its gradient, and one parameter's update."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from limpid.latex import readable
from limpid.maths.chain import Link
from limpid.maths.operation import Array
from limpid.trace.terminal import BACKWARD, FORWARD, UPDATE
from limpid.trace.worked import LEARNING_RATE, RULE, TEXT, WORDS, Worked, derivation

EXAMPLE = ("embed.tokens.weight", (WORDS.index("<BOS>"), 0))


def tell(step: Worked, console: Console, everything: bool = False) -> None:
    """Print the step from the tokens to the update; matrices whole with `everything`, their corners else."""
    size = sum(parameter.size for parameter in step.before.values())
    console.print(
        Text.assemble(
            ("the worked model", "bold"),
            f"  {size:,} parameters, {size * len(RULE.moments):,} optimizer values · "
            f"{' '.join(TEXT[:-1])} → {' '.join(TEXT[1:])}\n",
        ),
        soft_wrap=True,
    )
    for link in step.chain.links:
        _value(link.name, step.chain.values[link.name], FORWARD, console, everything)
        console.print(Text(f"      {readable(link.operation.equation)}", "dim"), soft_wrap=True)
    _surprises(step, console)
    console.print(Text("backward, from the loss to the tokens", f"bold {BACKWARD}"))
    for link in reversed(step.chain.links):
        _backward(step, link, console, everything)
    _update(step, console)


def _value(name: str, array: Array, colour: str, console: Console, everything: bool) -> None:
    shape = "×".join(map(str, array.shape)) or "scalar"
    console.print(Text.assemble((f"  {name}", f"bold {colour}"), f"  {shape}"))
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    shown = rows if everything else rows[:4, :8]
    numbers = np.array2string(shown, formatter={"float": lambda x: f"{x:+.6f}"}, max_line_width=200, threshold=10**6)
    console.print(Text("    " + numbers.replace("\n", "\n    ") + ("" if shown.size == array.size else " …")),
                  soft_wrap=True)  # fmt: skip


def _surprises(step: Worked, console: Console) -> None:
    targets = step.chain.values["targets"][0]
    nats = [-float(step.chain.values["log_probabilities"][0, t, target]) for t, target in enumerate(targets)]
    console.print(
        f"  loss = ({' + '.join(f'{value:.6f}' for value in nats)}) / {len(nats)} = {step.loss:.6f} nats per label\n",
        markup=False,
        highlight=False,
    )


def _backward(step: Worked, link: Link, console: Console, everything: bool) -> None:
    for name in (link.name, *(name for name in link.inputs if name in step.before)):
        _value(f"grad({name})", step.gradients[name], BACKWARD, console, everything)
    for line in filter(None, link.operation.adjoint[: len(link.inputs)]):
        console.print(Text(f"      {readable(line)}", "dim"), soft_wrap=True)


def _update(step: Worked, console: Console) -> None:
    name, index = EXAMPLE
    console.print(
        Text.assemble(
            ("\nupdate", f"bold {UPDATE}"),
            f"  {type(RULE).__name__}, learning rate {LEARNING_RATE}, {name}{list(index)}",
        )
    )
    for line in derivation(step, name, index):
        console.print(Text(f"  {line}", UPDATE), soft_wrap=True)


def document(step: Worked) -> dict[str, Any]:
    """Every number of the step, for JSON."""
    return {
        "words": list(WORDS),
        "loss": step.loss,
        "values": {name: array.tolist() for name, array in step.chain.values.items()},
        "gradients": {name: array.tolist() for name, array in step.gradients.items()},
        "after": {name: array.tolist() for name, array in step.after.items()},
        "links": [
            {"name": link.name, "inputs": list(link.inputs), "equation": link.operation.equation}
            for link in step.chain.links
        ],
    }
