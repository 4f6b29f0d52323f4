"""Attention as it is called: what its masks say, which axis it takes for the positions.

Source: the documentation of torch.nn.functional.scaled_dot_product_attention and torch.nn.MultiheadAttention.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.doctor.calls import Call
from limpid.doctor.contracts.contract import MOST, Breach
from limpid.doctor.contracts.sequences import Sequence
from limpid.doctor.rules.layer_arguments import CAUSAL_FROM_THE_START, MASK_ADDED
from limpid.doctor.rules.padding import MASK_INVERTED

if TYPE_CHECKING:
    from limpid.doctor.contracts.layers import LayerProbe


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """The arguments of scaled_dot_product_attention, which says none itself."""


SDPA = inspect.signature(_sdpa)


def fused(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """scaled_dot_product_attention(query, key, value, attn_mask, …): True takes part, numbers are added."""
    given = SDPA.bind(*args, **kwargs)
    given.apply_defaults()
    query, key, mask = (given.arguments[name] for name in ("query", "key", "attn_mask"))
    probe.attended.append(tuple(query.shape))
    if given.arguments["is_causal"] and query.shape[-2] < key.shape[-2]:
        yield Breach(
            rule=CAUSAL_FROM_THE_START,
            where="scaled_dot_product_attention: is_causal",
            says=f"is_causal=True with {query.shape[-2]} queries and {key.shape[-2]} keys counts both from the first "
            f"one on: no query sees the last {key.shape[-2] - query.shape[-2]} keys, its own among them.",
            cause="keys of a cache, a prefix or a memory before those of the queries",
            fix="attn_mask=causal_lower_right(queries, keys) of torch.nn.attention.bias",
            severity="warning",
            looks=2,
            evidence={"queries": query.shape[-2], "keys": key.shape[-2]},
        )
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
            meant=None if _hides(mask) else "a bias towards some keys, as along the edges of a graph",
            evidence={"format": kind, "ones": float(ones.float().mean())},
        )


def _hides(mask: Tensor) -> bool:
    """Whether 0 and 1 stand as in a mask: those before or after each position, or the same for all queries."""
    last = mask.flatten(0, -3) if mask.ndim > 2 else mask[None]
    order = torch.ones(last.shape[-2:], device=mask.device).tril()
    steps = any(
        bool((last == one).all()) for one in (order, order.T, 1 - order, 1 - order.T) if one.shape == order.shape
    )
    return steps or last.shape[-2] == 1 or bool((last == last[..., :1, :]).all())


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
