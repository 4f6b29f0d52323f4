"""The model's attentions before the first step: on the probe, on a masked batch, on one token again and again."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limpid.doctor.attention_probe import AttentionProbe, AttentionScores, off_diagonal_share
from limpid.doctor.calls import Call, find_logits
from limpid.doctor.undisturbed import undisturbed

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam


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

    @property
    def overflowed(self) -> str | None:
        """The first operation of that pass that made float16 infinities of numbers."""
        return self.probe.overflowed

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
