"""Layers inside a forward pass: masks, the axis of a sequence, states, an axis that nobody named.

A function mode sees the arguments of every function of torch that Python calls. Source: the documentation of
torch.nn.functional.scaled_dot_product_attention, torch.nn.MultiheadAttention, LSTM, GRU, Softmax, Dropout, grid_sample.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from limpid.doctor.calls import Call, find_rows
from limpid.doctor.contracts.contract import MOST, Breach, Given
from limpid.doctor.finding import Skipped
from limpid.doctor.makers import VIEWS, path
from limpid.doctor.rules.layer_arguments import (
    AXIS_NOT_NAMED,
    BATCH_FOR_TIME,
    DROPPED_LAST,
    MASK_ADDED,
    OFF_THE_GRID,
    STATES_EXCHANGED,
)
from limpid.doctor.rules.padding import MASK_INVERTED

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
MARK = "limpid: dropout"
"""In the metadata of the node of a graph that dropout made."""
OUTSIDE_GRID = 0.9
"""Share of the points outside of a picture from which on hardly anything is read of it."""


class Sequence(NamedTuple):
    """One layer that reads sequences: how long it takes them to be, and how many."""

    kind: str
    length: int
    rows: int


class LayerProbe(TorchFunctionMode):
    """Looks at the arguments of layers in the pass made inside; passes everything on unchanged."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        self.skipped = Skipped()
        self.breaches: list[Breach] = []
        self.sequences: list[Sequence] = []
        self.cells: list[Tensor] = []  # c of each LSTM so far

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        look = LOOKS.get(getattr(func, "__name__", ""))
        if look is not None:
            with self.skipped.noting("layers"), torch._C.DisableTorchFunction(), torch.no_grad():
                self.breaches.extend(look(self, args, kwargs, out))
        return out

    def ended(self, output: Any) -> list[Breach]:
        """All that the pass showed, once its output is there."""
        with self.skipped.noting("sequences"):
            self.breaches.extend(batch_for_time(self.call, self.sequences, output))
        return self.breaches


def fused(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """scaled_dot_product_attention(query, key, value, attn_mask, …): True takes part, numbers are added."""
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    if isinstance(mask, Tensor):
        yield from _added("scaled_dot_product_attention: attn_mask", mask, "True takes part")
        if mask.dtype == torch.bool and mask.ndim == 4 and mask.shape[1] == mask.shape[2] == 1:
            yield from _inverted(probe.call, "scaled_dot_product_attention: attn_mask", ~mask[:, 0, 0])


def by_heads(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """multi_head_attention_forward: True is left out, numbers are added; sequences (time, row, width)."""
    given = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs).arguments
    query, padding = given["query"], given.get("key_padding_mask")
    if query.ndim == 3:
        probe.sequences.append(Sequence("MultiheadAttention", query.shape[0], query.shape[1]))
    for name in ("attn_mask", "key_padding_mask"):
        if isinstance(given.get(name), Tensor):
            yield from _added(f"MultiheadAttention: {name}", given[name], "True is left out")
    if isinstance(padding, Tensor):
        hidden = padding if padding.dtype == torch.bool else padding == -torch.inf
        yield from _inverted(probe.call, "MultiheadAttention: key_padding_mask", hidden)


def _added(where: str, mask: Tensor, meaning: str) -> Iterator[Breach]:
    """Zeros and ones of a number format where numbers are added to the scores."""
    if not mask.is_floating_point() or mask.requires_grad or not 1 < mask.numel() <= MOST:
        return
    zeros, ones = mask == 0, mask == 1
    if bool((zeros | ones).all()) and bool(zeros.any()) and bool(ones.any()):
        kind = str(mask.dtype).removeprefix("torch.")
        yield Breach(
            rule=MASK_ADDED,
            where=where,
            says=f"the mask holds {kind} numbers 0 and 1, and numbers are added to the scores: what was to be hidden "
            "stays visible, at 1/e of the weight of the rest.",
            cause="a mask of 0 and 1 that was not turned into bool",
            fix=f"mask.bool() ({meaning}), or 0 and -inf",
            evidence={"format": kind, "ones": float(ones.float().mean())},
        )


def _inverted(call: Call, where: str, hidden: Tensor) -> Iterator[Breach]:
    """A mask (row, position) that hides what the inputs hold, and shows their padding."""
    known = [v for v in [*call.args, *call.kwargs.values()] if isinstance(v, Tensor) and v.shape[:2] == hidden.shape]
    for value in known:
        if value.ndim == 2 and not value.is_floating_point() and value.dtype != torch.bool:
            shown, rest = value[~hidden], value[hidden]
            alike = len(shown) > 1 and len(shown.unique()) == 1 and len(rest.unique()) > 2
            wrong = alike and not bool((rest == shown[0]).any())
            what = f"token {int(shown[0])} alone" if wrong else ""
        elif value.ndim == 3 and value.is_floating_point():
            shown, rest = value[~hidden], value[hidden]
            wrong = len(shown) > 1 and not bool(shown.any()) and len(rest) > 0 and bool(rest.any(-1).all())
            what = "rows of zeros alone"
        else:
            continue
        if wrong:
            yield Breach(
                rule=MASK_INVERTED,
                where=where,
                says=f"the mask shows {what} and hides all else: it is the wrong way round.",
                evidence={"shown": len(shown), "hidden": len(rest)},
            )
            return


def recurrent(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """lstm(input, state, …, batch_first), gru and rnn likewise; packed sequences say themselves how long they are."""
    if len(args) != 9 or args[0].ndim != 3:
        return
    rows, length = args[0].shape[:2] if args[8] else args[0].shape[1::-1]
    kind = "LSTM" if len(out) == 3 else "GRU or RNN"
    probe.sequences.append(Sequence(kind, length, rows))
    if len(out) != 3:
        return
    state, cell = args[1]
    if any(state.data_ptr() == one.data_ptr() and state.shape == one.shape for one in probe.cells) and not any(
        cell.data_ptr() == one.data_ptr() for one in probe.cells
    ):
        yield Breach(
            rule=STATES_EXCHANGED,
            where="LSTM: (h, c)",
            says="an LSTM is given another's cell state c as its hidden state h, and h as its c: c is not bounded and "
            "h is, each is taken for the other.",
            cause="the order of the pair",
            fix="lstm(x, (h, c)), in the order in which it was returned",
        )
    probe.cells.append(out[2])


def unnamed(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """softmax and log_softmax without dim: of three axes the first is taken."""
    given = args[0]
    if "dim" in kwargs and kwargs["dim"] is None and given.ndim == 3 and given.requires_grad and given.shape[0] > 1:
        yield Breach(
            rule=AXIS_NOT_NAMED,
            where="softmax: dim",
            says=f"softmax without dim runs over axis 0 of {tuple(given.shape)}, the rows of the batch: what is "
            "likelier in one row becomes less likely in the others.",
            cause="the default of dim, which the documentation calls deprecated",
            fix="softmax(…, dim=-1)",
            evidence={"shape": list(given.shape)},
        )


def dropped(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """Mark what dropout made, to know it again in a loss."""
    p, training = kwargs.get("p", 0.5), kwargs.get("training", True)
    if training and p > 0 and isinstance(out, Tensor) and out.grad_fn is not None and out is not args[0]:
        metadata: Any = out.grad_fn.metadata  # its stub takes the property for a method
        metadata[MARK] = p
    yield from ()


def after_dropout(name: str, given: Given) -> Iterator[Breach]:
    """What a loss is given straight from dropout."""
    value = given["input"]
    p = next((node.metadata[MARK] for _, node in path(value, VIEWS) if MARK in node.metadata), 0.0)
    if p:
        yield Breach(
            rule=DROPPED_LAST,
            where=f"{name}: input",
            says=f"dropout (p = {p:g}) is the last thing before the loss: {p:.0%} of the outputs are 0 by chance, and "
            f"the others {1 / (1 - p) if p < 1 else float('inf'):.3g} times as large.",
            cause="dropout after the last layer",
            fix="dropout before the last linear layer",
            severity="warning",
            looks=2,
            evidence={"p": p},
        )


def sampled(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """grid_sample(input, grid, …): points between -1 and 1."""
    grid = args[1] if len(args) > 1 else kwargs.get("grid")
    if not isinstance(grid, Tensor) or grid.numel() > MOST or kwargs.get("padding_mode", "zeros") != "zeros":
        return
    outside = float(((grid < -1) | (grid > 1)).any(-1).float().mean())
    if outside > OUTSIDE_GRID:
        yield Breach(
            rule=OFF_THE_GRID,
            where="grid_sample: grid",
            says=f"{outside:.0%} of the points lie outside of [-1, 1] (up to {float(grid.abs().max()):.3g}), where a "
            "picture reads as 0: hardly anything of it is seen.",
            cause="points in pixels",
            fix="2 * pixel / (size - 1) - 1, with align_corners=True",
            looks=2,
            evidence={"outside": outside},
        )


def batch_for_time(call: Call, sequences: list[Sequence], output: Any) -> Iterator[Breach]:
    """Layers that all take the rows of the batch for the steps of a sequence.

    Which axis of the inputs holds the rows, outputs (row, number) say.
    """
    rows = find_rows(output)
    if rows is None or rows.ndim != 2 or not sequences:
        return
    for value in [*call.args, *call.kwargs.values()]:
        if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[0] == value.shape[1]:
            continue
        batch, length = value.shape[:2]
        if len(rows) == batch and all(one.length == batch and one.rows == length for one in sequences):
            yield Breach(
                rule=BATCH_FOR_TIME,
                where=f"{sequences[0].kind}: batch_first",
                says=f"inputs are {batch} rows of {length} steps, and {sequences[0].kind} reads {length} rows of "
                f"{batch} steps: it goes from row to row of the batch, and never along a sequence.",
                cause="batch_first=False, the default, for inputs (row, step, …); or a transposition too many",
                fix="batch_first=True, or inputs (step, row, …)",
                evidence={"rows": batch, "steps": length},
            )
            return


LOOKS = {
    "scaled_dot_product_attention": fused,
    "multi_head_attention_forward": by_heads,
    "softmax": unnamed,
    "log_softmax": unnamed,
    "dropout": dropped,
    "grid_sample": sampled,
    **dict.fromkeys(RECURRENT, recurrent),
}
