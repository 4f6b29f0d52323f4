"""Forward passes before the first step: which modules are called, what passes through, what every attention does."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limpid.doctor.attention_probe import AttentionProbe, AttentionScores, off_diagonal_share
from limpid.doctor.calls import Call, find_logits
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.shield import Shield
from limpid.doctor.undisturbed import seeded, undisturbed

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam


TRIES = 6
"""Passes with other random numbers: a layer that is kept seven times in ten is in all of five alike once in twenty."""


@dataclass
class Flow:
    """What one forward pass did."""

    called: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)  # parameters that some operation took
    cosine: dict[str, float] = field(default_factory=dict)  # of each block: input and output
    cut: list[str] = field(default_factory=list)  # modules whose output has left the graph, in order
    first_is_norm: bool = False  # whether what comes first in it is a norm
    silent: list[str] = field(default_factory=list)  # modules whose output is all 0, though their input is not
    one_row: set[str] = field(default_factory=set)  # tables looked up at many positions, at one and the same row


def flow(info: ModelInfo, shield: Shield, call: Call) -> Flow:
    """Watch one forward pass, in training mode with gradients on."""
    seen = Flow()
    handles = []
    blocks = dict(info.blocks)
    leaves: list[str] = []

    def hook(name: str) -> Any:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            seen.called.add(name)
            if not any(True for _ in module.children()) and len(leaves) < 1:
                leaves.append(name)
                seen.first_is_norm = "norm" in type(module).__name__.lower()
            if type(module).forward is nn.Embedding.forward and args and _constant(args[0], call):
                seen.one_row.add(name)
            given = next(
                (v for v in [*args, *kwargs.values()] if isinstance(v, Tensor) and v.is_floating_point()), None
            )
            made = output[0] if isinstance(output, tuple | list) and output else output
            if not isinstance(made, Tensor) or not made.is_floating_point():
                return
            if given is not None and not bool(made.detach().any()) and bool(given.detach().any()):
                seen.silent.append(name)
            if name in blocks and given is not None and given.shape == made.shape:
                x, y = given.detach().float().flatten(0, -2), made.detach().float().flatten(0, -2)
                seen.cosine[name] = float(torch.nn.functional.cosine_similarity(x, y, dim=-1).mean())
            if not made.requires_grad and any(p.requires_grad for p in module.parameters()):
                seen.cut.append(name)

        return look

    with undisturbed(shield, gradients=True):
        info.model.train()
        seeded()
        for name, module in info.model.named_modules():
            handles.append(module.register_forward_hook(hook(name), with_kwargs=True))
        try:
            call.make(info.model)
        finally:
            for handle in handles:
                handle.remove()
    return seen


def left_to_chance(info: ModelInfo, shield: Shield, call: Call) -> set[str]:
    """Modules that some passes call, by their random numbers, and others do not; and the siblings of these."""
    seen: list[set[str]] = []
    with undisturbed(shield, gradients=True):
        info.model.train()
        for seed in range(TRIES):
            called: set[str] = set()
            handles = [
                module.register_forward_pre_hook(lambda *_, name=name, called=called: called.add(name))
                for name, module in info.model.named_modules()
            ]
            seeded(seed)
            try:
                call.make(info.model)
            finally:
                for handle in handles:
                    handle.remove()
            seen.append(called)
    uneven = {name for called in seen for name in called if not all(name in other for other in seen)}
    lists = {name.rpartition(".")[0] for name in uneven}
    return {name for name, _ in info.model.named_modules() if name and name.rpartition(".")[0] in lists}


def _constant(index: Any, call: Call) -> bool:
    """Whether an index over the positions of the call is the same at each of them."""
    length = 0 if call.ids is None else call.ids.shape[1]
    if not isinstance(index, Tensor) or index.ndim < 1 or length < 8 or index.shape[-1] != length:
        return False
    return bool((index == index.flatten()[0]).all())


def shortcut_gains(info: ModelInfo, shield: Shield, call: Call) -> dict[str, float]:
    """〈v, J v〉/〈v, v〉 of each block for a random v: the share of a change that passes through as it is.

    With x + f(x) the mean is 1 + tr(∂f)/d, near 1; without the shortcut tr(∂f)/d, near 0.
    """
    entered: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
    handles = []
    gains: dict[str, float] = {}

    def keep(name: str) -> Any:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            entered[name] = (module, args, {key: None if _remembers(one) else one for key, one in kwargs.items()})

        return look

    with undisturbed(shield):
        info.model.eval()
        for name, block in info.blocks:
            handles.append(block.register_forward_pre_hook(keep(name), with_kwargs=True))
        try:
            call.make(info.model)
        finally:
            for handle in handles:
                handle.remove()
        seeded()
        for name, (module, args, kwargs) in entered.items():
            x = args[0] if args else None
            if not isinstance(x, Tensor) or not x.is_floating_point():
                continue
            v = torch.randn_like(x) * x.float().pow(2).mean().sqrt().to(x.dtype) * 1e-3
            with_change, without = (_first(module(y, *args[1:], **kwargs)) for y in (x + v, x))
            if with_change is None or without is None or without.shape != x.shape:
                continue
            change = (with_change - without).float()
            gains[name] = float((change * v.float()).sum() / (v.float() * v.float()).sum())
    return gains


def _remembers(given: Any) -> bool:
    """Whether it is a cache of transformers', to which each call adds its keys and values."""
    return hasattr(given, "get_seq_length")


def _first(output: Any) -> Tensor | None:
    made = output[0] if isinstance(output, tuple | list) and output else output
    return made if isinstance(made, Tensor) else None


class AttentionExam:
    """What forward passes in evaluation mode show of every attention; each pass is made once."""

    def __init__(self, exam: Exam) -> None:
        self.exam = exam

    @cached_property
    def probe(self) -> AttentionProbe:
        return self._attentions_of(self.exam.probe)[0]

    def _attentions_of(self, call: Call | None) -> tuple[AttentionProbe, Any]:
        """One forward pass in evaluation mode, seen function by function, and what it returned."""
        seen, output = AttentionProbe(), None
        if call is not None:
            with undisturbed(self.exam.shield):
                self.exam.model.eval()
                with seen:
                    output = call.make(self.exam.model)
        return seen, output

    @property
    def scores(self) -> list[AttentionScores]:
        """The attentions of the probe."""
        return self.probe.attentions

    @cached_property
    def _numbers(self) -> AttentionProbe:
        """The usual call, where it holds no token ids."""
        call = self.exam.few_rows
        return self._attentions_of(None if call is None or call.ids is not None else call.without_loss())[0]

    @property
    def overflowed(self) -> str | None:
        """The first operation of that pass that made float16 infinities of numbers."""
        return self.probe.overflowed if self.exam.probe is not None else self._numbers.overflowed

    @cached_property
    def _masked_batch(self) -> tuple[AttentionProbe, bool | None]:
        """The whole first micro-batch where it is masked, and whether its output is finite; else the probe."""
        call = self.exam.usual_call
        if call is None or call.mask is None or not self.exam.may_call:
            return self.probe, None
        seen, output = self._attentions_of(call.without_loss())
        logits = find_logits(output)
        return seen, None if logits is None else bool(torch.isfinite(logits).all())

    @property
    def of_batch(self) -> list[AttentionScores]:
        return self._masked_batch[0].attentions

    @property
    def batch_is_finite(self) -> bool | None:
        return self._masked_batch[1]

    @cached_property
    def _plain_token(self) -> int | None:
        """The commonest token that no document begins or ends with, and whose vector is not 0, as that of padding."""
        ids = None if self.exam.probe is None else self.exam.probe.ids
        if ids is None:
            return None
        signs = {self.exam.info.declared(f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
        signs |= {*ids[:, 0].tolist(), *ids[:, -1].tolist()}
        tokens, counts = ids.unique(return_counts=True)
        common = tokens[counts.argsort(descending=True)].tolist()
        table = None if self.exam.info.embedding is None else self.exam.info.embedding[1]
        common = [t for t in common if table is None or t >= len(table) or bool(table[t].any())]
        return next((token for token in common if token not in signs), common[0] if common else None)

    @cached_property
    def _one_token(self) -> tuple[AttentionScores | None, bool]:
        """The first attention for a row of one repeated token, and whether that pass computed angles.

        None where positions are added to the tokens, so that rows of it differ.
        """
        probe = self.exam.probe
        if probe is None or probe.ids is None or not self.exam.info.blocks:
            return None, False
        one, token = probe.rows(slice(0, 1)), self._plain_token
        if token is None or (one.mask is not None and not bool(one.mask.all())):
            return None, False
        entered: list[Tensor] = []

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs.get("hidden_states")
            if isinstance(value, Tensor):
                entered.append(value.detach())

        handle = self.exam.info.blocks[0][1].register_forward_pre_hook(look, with_kwargs=True)
        try:
            seen, _ = self._attentions_of(one.with_ids(torch.full_like(probe.ids[:1], token)))
        finally:
            handle.remove()
        if not seen.attentions or not entered or entered[0].ndim != 3:
            return None, seen.turns
        x = entered[0][0].float()
        same = float((x - x[:1]).abs().max()) <= 1e-4 * float(x.abs().max())
        return seen.attentions[0] if same else None, seen.turns

    @property
    def of_one_token(self) -> AttentionScores | None:
        return self._one_token[0]

    def along_a_row(self) -> AttentionScores | None:
        """The first attention for a row of one repeated token, as long as rows of the batch are.

        What is added to its tokens for their places is there, too.
        """
        usual, token = self.exam.usual_call, self._plain_token
        row = None if usual is None else usual.without_loss().rows(slice(0, 1))
        if row is None or row.ids is None or token is None or (row.mask is not None and not bool(row.mask.all())):
            return None
        seen, _ = self._attentions_of(row.with_ids(torch.full_like(row.ids, token)))
        return seen.attentions[0] if seen.attentions else None

    @property
    def turns(self) -> bool:
        """Whether angles are computed."""
        return self._one_token[1]

    @cached_property
    def off_diagonal(self) -> float | None:
        if self.of_one_token is None or self.exam.probe is None:
            return None
        given = self.exam.probe.positions
        return off_diagonal_share(self.of_one_token, None if given is None else given[0])
