"""The model: what is trained, in which format, from where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn

from limpid.doctor.description.attentions import attentions
from limpid.doctor.description.beside import beside
from limpid.doctor.description.outputs import outputs
from limpid.doctor.description.words import counted, format_of, listed, number, patterns, share
from limpid.doctor.weights import root_mean_square

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.model_info import ModelInfo
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

WITH_SIZES = (nn.Linear, nn.Embedding)
"""Layers whose settings are sizes, which differ from one to the next."""
ROUNDING = 1e-3
"""Share of the largest output by which outputs may differ when rows are computed elsewhere in a batch."""
DEFAULTS = (
    "eps=1e-05", "momentum=0.1", "affine=True", "elementwise_affine=True", "bias=True", "inplace=False",
    "track_running_stats=True", "dilation=1", "ceil_mode=False", "padding=0", "approximate='none'",
    "start_dim=1", "end_dim=-1",
)  # fmt: skip
"""What need not be said of layers."""


def model(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Sizes, what is frozen, formats, modes, and other models of its kind."""
    info = watched.info
    named = info.parameters
    trained = {name: p for name, p in named.items() if p.requires_grad}
    size = sum(p.numel() for p in trained.values())
    how = "all of them require a gradient" if len(trained) == len(named) else f"{share(size / max(1, info.size))} train"
    yield f"{type(info.core).__name__}: {counted(info.size, 'parameter')} in {len(named)} tensors, {how}"
    if len(trained) < len(named):
        frozen = [name for name in named if name not in trained]
        fewer, what = (trained, "trained") if len(trained) <= len(frozen) else (frozen, "frozen")
        yield f"{what}: {listed(patterns(fewer, named), 8)}"
    stepped = {id(p) for p in watched.held}
    outside = [name for name, p in trained.items() if id(p) not in stepped | watched.masters]
    if outside and watched.optimizers:
        yield f"in no optimizer, though they require a gradient: {listed(patterns(outside, named))}"
    formats = sorted({format_of(p.dtype) for p in named.values()})
    around = sorted({format_of(one) for one in record.autocast if one is not None})
    yield f"weights in {', '.join(formats)}; autocast {', '.join(around) or 'off'}"
    yield from _modes(watched, record)
    yield from () if history.so_far.tried is None else history.so_far.tried.told()
    yield from attentions(record)
    yield from outputs(record)
    for one in (history.so_far.places, history.so_far.neighbours):
        yield from () if one is None else one.told()
    if history.so_far.moved_with_order > ROUNDING:
        yield (
            "the same rows in another order, each one row further down in the batch, have other outputs, up to "
            f"{share(history.so_far.moved_with_order)} of the largest apart"
        )
    yield from _padding_rows(info)
    settings = _settings(info.core)
    if settings:
        yield f"made of {listed(settings, 12)}"
    yield from history.so_far.states.told()
    drawn = "spread as drawn ones are" if history.began_fresh else "not as drawn: loaded, or trained before"
    yield from () if history.so_far.scales is None else history.so_far.scales.told()
    if history.so_far.called:
        yield f"weights at the first pass: {drawn}"
    yield from history.so_far.alike.told()
    held = history.so_far.held
    held.find(info)
    yield from held.told()
    yield from beside(record)
    declared = info.config
    kept = {
        name: value
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings", "problem_type")
        if (value := getattr(declared, name, None)) is not None
    }
    if kept:
        yield "its configuration says " + ", ".join(f"{name}={value}" for name, value in kept.items())


def _padding_rows(info: ModelInfo) -> Iterator[str]:
    """Of tables that name a row of padding, which their own start sets to 0, how large it is."""
    for name, module in info.model.named_modules():
        row = module.padding_idx if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
        table = None if row is None else module.weight
        if row is not None and isinstance(table, Tensor) and not info.sharded and not table.is_meta:
            own, others = root_mean_square(table[row].detach()), root_mean_square(table.detach())
            is_nought = "0" if own == 0 else f"of size {own:.2g} (rms; the table's {others:.2g})"
            yield f"row {row} of {name}, that of padding, is {is_nought}"


def _modes(watched: Watched, record: StepRecord) -> Iterator[str]:
    """Which modules the backward pass found in evaluation mode, and where entries are dropped."""
    whole = record.in_eval == ["model"]
    resting = (
        f", but for {listed(patterns(record.in_eval))}, which drop nothing" if record.in_eval and not whole else ""
    )
    rate, dropping = watched.info.dropout_rate, [name for name, _ in watched.info.dropout_modules]
    where = f"up to {rate:g}{', in ' + listed(patterns(dropping)) if dropping else ''}" if rate else "none"
    yield f"{'evaluation' if whole else 'training'} mode in backward{resting}; dropout {where}"
    yield from _modes_of_parts(watched.info)


def _modes_of_parts(info: ModelInfo) -> Iterator[str]:
    """Of parts that do not train, and of norms with statistics, which are in which mode, where they drop or count."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, module in info.model.named_modules():
        counts = isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None
        drops = any(module is one for _, one in info.dropout_modules)
        if counts or drops:
            mode = "training" if module.training else "evaluation"
            found.setdefault(("frozen" if not info.learns(name) else "trained", mode), []).append(name)
    kinds = {kind for kind, _ in found}
    for (kind, mode), names in found.items():
        if kind == "frozen" or len([one for one in found if one[0] == kind]) > 1 or "frozen" in kinds:
            yield f"{mode} mode: {listed(patterns(names))}, which {'do not train' if kind == 'frozen' else 'train'}"


def _settings(core: nn.Module) -> list[str]:
    """Its innermost layers, each kind with its settings and how often it is there; of maps the number alone."""
    leaves = [module for module in core.modules() if not any(module.children())]
    kinds = Counter(f"{type(one).__name__}{_own_settings(one)}" for one in leaves)
    return [f"{kind} ×{number(count)}" if count > 1 else kind for kind, count in kinds.items()]


def _own_settings(layer: nn.Module) -> str:
    """Those of a layer that are other than PyTorch's defaults."""
    said = "" if isinstance(layer, WITH_SIZES) else layer.extra_repr()
    for default in DEFAULTS:
        said = said.replace(f", {default}", "").removeprefix(default).removeprefix(", ")
    return f"({said})" if said else ""
