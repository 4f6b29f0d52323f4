"""The model: what of it learns, from where, and what its outputs read."""

from __future__ import annotations

from typing import Any

from torch import nn

from limpid.doctor.description.reach import Reach
from limpid.doctor.expected.key import Seen, are_words, is_amount, is_switch, key, one_of

NOT_AT_REST = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
"""Layers that do something else in training mode."""


OTHERS = ("teacher", "reference", "ref_", "target", "ema", "momentum_")
"""Parts of a model that are another one, which the trained one learns from."""


def is_named(parameter: str, word: str) -> bool:
    """Whether a word stands in a parameter's name."""
    return word.lower() in parameter.lower()


def learning(seen: Seen) -> dict[str, bool]:
    """Whether each parameter asks for a gradient and is in an optimizer; a teacher that is a part is left out."""
    held = {id(p) for p in seen.watched.held} | seen.watched.masters
    known = bool(seen.watched.optimizers)
    return {
        name: p.requires_grad and (not known or id(p) in held)
        for name, p in seen.watched.info.parameters.items()
        if not any(is_named(name.partition(".")[0], word) for word in OTHERS)
    }


@key(
    "model",
    "trained",
    '"all", or a list of words',
    "what learns: parameters whose names hold one of the words; all others are frozen, or in no optimizer",
    lambda value: value == "all" or are_words(value),
    agrees=lambda said, seen: not seen,
    settles=lambda said: () if said == "all" else ("parameters-not-in-optimizer", "parameters-frozen"),
)
def trained(seen: Seen, said: Any) -> Any:
    """Parameters that learn and should not, or should and do not."""
    found = learning(seen)
    if said == "all":
        return [f"{name} does not learn" for name, learns in found.items() if not learns]
    meant = {name: any(is_named(name, word) for word in said) for name in found}
    wrong = [(name, learns) for name, learns in found.items() if learns != meant[name]]
    return [f"{name} {'learns' if learns else 'does not learn'}" for name, learns in wrong]


@key(
    "model",
    "dropout",
    "a number from 0 on",
    "largest share of entries that a layer drops in training",
    is_amount,
    settles=lambda said: ("dropout-too-high",),
)
def dropout(seen: Seen, said: Any) -> Any:
    return float(seen.watched.info.dropout_rate)


@key(
    "model",
    "weights",
    '"float32", "bfloat16" or "float16"',
    "format of the weights that learn",
    one_of("float32", "bfloat16", "float16"),
)
def weights(seen: Seen, said: Any) -> Any:
    found = {str(p.dtype).removeprefix("torch.") for p in seen.watched.info.parameters.values() if p.requires_grad}
    return found.pop() if len(found) == 1 else None


@key(
    "model",
    "autocast",
    '"bfloat16", "float16" or false',
    "format of autocast around forward passes",
    lambda value: value is False or value in ("bfloat16", "float16"),
)
def autocast(seen: Seen, said: Any) -> Any:
    found = {one for one in seen.record.autocast if one is not None}
    return str(found.pop()).removeprefix("torch.") if found else False if seen.record.calls else None


@key(
    "model",
    "begins",
    '"drawn" or "loaded"',
    "weights as they were drawn, or from an earlier training",
    one_of("drawn", "loaded"),
)
def begins(seen: Seen, said: Any) -> Any:
    found = learning(seen)
    if said == "drawn" and (not all(found.values()) or len(found) < len(seen.watched.info.parameters)):
        return None  # what is frozen was loaded, and what learns need not be
    return "drawn" if seen.history.began_fresh else "loaded"


@key("model", "tied", "true or false", "whether the output matrix is the embedding", is_switch)
def tied(seen: Seen, said: Any) -> Any:
    table, classes = seen.watched.info.embedding, seen.record.taught[0].shape[-1] if seen.record.taught else 0
    if table is None or not classes or table[1].shape[0] != classes:
        return None
    outputs = [m.weight for m in seen.watched.info.outer.modules() if isinstance(m, nn.Linear)]
    wide = [weight for weight in outputs if weight.shape[0] == classes]
    return any(weight is table[1] for weight in wide) if wide else None


def _reach(seen: Seen) -> Reach | None:
    tried = seen.history.so_far.tried
    return None if tried is None else tried.reach


@key(
    "model",
    "reads",
    '"past", "both sides" or "own place"',
    "which tokens of its own row an output may depend on: itself and those before it, any, itself alone",
    one_of("past", "both sides", "own place"),
    settles=lambda said: ("not-causal",) if said == "both sides" else (),
)
def reads(seen: Seen, said: Any) -> Any:
    reach = _reach(seen)
    if reach is None or reach.positions < 2 or not reach.moved:
        return "other rows" if reach is not None and reach.other_rows else None
    if reach.other_rows:
        return "other rows"
    if min(reach.moved) < reach.at:
        return "both sides"
    if reach.moved == (reach.at,) and said != "own place":
        return None  # what others read of it may be too little to be seen, at the start or in 16 bits
    return "own place" if reach.moved == (reach.at,) else "past"


@key("model", "padding_hidden", "true or false", "whether outputs at tokens do not depend on the padding", is_switch)
def padding_hidden(seen: Seen, said: Any) -> Any:
    reach = _reach(seen)
    return None if reach is None or reach.padding_seen is None else not reach.padding_seen


@key(
    "model",
    "frozen_at_rest",
    "true or false",
    "whether frozen parts neither drop entries nor count statistics of the batch",
    is_switch,
)
def frozen_at_rest(seen: Seen, said: Any) -> Any:
    found = learning(seen)
    for path, module in seen.watched.info.core.named_children():
        own = [learns for name, learns in found.items() if name.startswith(f"{path}.")]
        if own and not any(own) and any(isinstance(m, NOT_AT_REST) and m.training for m in module.modules()):
            return False
    return True
