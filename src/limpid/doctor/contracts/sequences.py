"""Layers that read sequences: which axis they take for time, whose states they begin with, where they end.

Source: the documentation of torch.nn.LSTM, GRU, RNN, MultiheadAttention and torch.nn.utils.rnn.pad_packed_sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from limpid.doctor.calls import Call, find_rows
from limpid.doctor.contracts.contract import Breach
from limpid.doctor.rules.layer_arguments import BATCH_FOR_TIME, BEHIND_THE_END, HEADS_FOR_TIME, STATES_EXCHANGED

if TYPE_CHECKING:
    from limpid.doctor.contracts.layers import LayerProbe

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class Sequence(NamedTuple):
    """One layer that reads sequences: how long it takes them to be, and how many."""

    kind: str
    length: int
    rows: int


def recurrent(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """lstm(input, state, …, batch_first), gru and rnn likewise; packed sequences say themselves how long they are."""
    if len(args) == 9 and args[0].ndim == 2:  # packed: rows that go on at each step
        probe.shorter = int(args[1][0] - args[1][-1])
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


def batch_for_time(call: Call, sequences: list[Sequence], output: Any) -> Iterator[Breach]:
    """Layers that all take the rows of the batch for the steps of a sequence.

    Which axis of the inputs holds the rows, outputs (row, number) say.
    """
    recurs = any(one.kind != "MultiheadAttention" for one in sequences)
    rows = find_rows(output) if sequences else None
    if rows is None or rows.ndim != 2:
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
                meant=None if recurs else "attention between the rows of a batch, as of a table",
                evidence={"rows": batch, "steps": length},
            )
            return


def heads_for_time(call: Call, attended: list[tuple[int, ...]]) -> Iterator[Breach]:
    """Attentions that all run among the heads: queries (row, position, head, width) where (row, head, position, width)
    are asked for."""
    for value in [*call.args, *call.kwargs.values()]:
        ids = isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point()
        if not attended or not isinstance(value, Tensor) or not (ids or value.ndim == 3):
            continue
        rows, length = value.shape[:2]
        if length > 1 and all(len(s) == 4 and s[:2] == (rows, length) and s[2] != length for s in attended):
            yield Breach(
                rule=HEADS_FOR_TIME,
                where="scaled_dot_product_attention: query",
                says=f"queries are {attended[0]}, {length} positions before {attended[0][2]} heads, where (…, "
                "position, width) come last: each position attends to its own heads, and none to another position.",
                cause="no transpose(1, 2) after the projection; other libraries take (row, position, head, width)",
                fix="query.transpose(1, 2), and the output back",
                looks=2,
                meant=None if ids else "attention among the features or channels of each step",
                evidence={"shape": list(attended[0])},
            )
            return


def behind_the_end(shorter: int, output: Any) -> Iterator[Breach]:
    """Outputs of packed sequences that are the same for as many rows as are shorter than the longest."""
    rows = find_rows(output) if shorter > 1 else None
    if rows is None or rows.ndim != 2 or shorter >= len(rows):
        return
    alike = int(rows.detach().unique(dim=0, return_counts=True)[1].max())
    if alike == shorter:
        yield Breach(
            rule=BEHIND_THE_END,
            where="pad_packed_sequence",
            says=f"{shorter} of {len(rows)} sequences are shorter than the longest, and just as many rows have one and "
            "the same output: what is read of them lies behind their end, where padding is 0.",
            cause="output[:, -1] after pad_packed_sequence",
            fix="the last hidden state h_n, or output[row, length - 1]",
            looks=2,
            evidence={"shorter": shorter, "rows": len(rows)},
        )
