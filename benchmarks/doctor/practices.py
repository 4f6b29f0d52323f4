"""Healthy runs of established practice: adapters, preferences, policies, rates by group, weights in a narrow format."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.doctor.data import PAD, stream
from benchmarks.doctor.fault import Healthy
from benchmarks.doctor.loop import Loop, after, is_embedding
from benchmarks.doctor.models import anatomy
from torch import Tensor, nn

QUERIES_AND_KEYS = {"limpid": ["query", "key"], "gpt2": ["c_attn"], "llama": ["q_proj", "k_proj"], "plain": ["c_attn"]}


def adapted(loop: Loop) -> None:
    """Adapters of the peft library on queries and keys, whose product is multiplied by alpha/r = 4."""
    from peft import LoraConfig, inject_adapter_in_model

    def adapt(model: nn.Module) -> None:
        targets = QUERIES_AND_KEYS[loop.architecture]
        inject_adapter_in_model(LoraConfig(r=8, lora_alpha=32, target_modules=targets), model)

    after(loop, "build", adapt)


def log_likelihood(logits: Tensor, batch: Any) -> Tensor:
    """Of each row's labels."""
    return logits.float().log_softmax(-1).gather(-1, batch[1][..., None])[..., 0].sum(-1)


def preferred(loop: Loop) -> None:
    """DPO (Rafailov et al. 2023, eq. 7): the first half of the rows is preferred to the second, row by row."""
    reference = Loop(loop.architecture, 7, loop.settings)
    reference.prepare()
    kept: dict[str, Tensor] = {}

    def forward(batch: Any) -> Tensor:
        with torch.no_grad():
            kept["reference"] = log_likelihood(reference.forward(batch), batch)
        return Loop.forward(loop, batch)

    def loss(logits: Tensor, batch: Any) -> Tensor:
        chosen, rejected = (log_likelihood(logits, batch) - kept["reference"]).chunk(2)
        return -F.logsigmoid(0.1 * (chosen - rejected)).mean()

    loop.forward, loop.loss = forward, loss


def by_policy(loop: Loop) -> None:
    """REINFORCE with one advantage for each row, normalised over the batch; most rows are a little worse than it."""

    def loss(logits: Tensor, batch: Any) -> Tensor:
        rewards = (batch[0] == ord("e")).double().mean(1) ** 4
        advantages = (rewards - rewards.mean()) / rewards.std().clamp(min=1e-12)
        return -(advantages.float() * log_likelihood(logits, batch)).mean() / loop.settings.positions

    loop.loss = loss


def rates_by_group(loop: Loop) -> None:
    """A rate for each depth, lowest at the bottom, and a large one for the table, which no gradient is dense in."""

    def groups() -> list[dict[str, Any]]:
        named = list(loop.model.named_parameters())
        depths = [loop.settings.rate * 0.5 ** (loop.settings.blocks - i) for i in range(loop.settings.blocks)]
        inside = [{id(p) for p in block.parameters()} for block in anatomy(loop.model).blocks]
        found = [
            {"params": [p for _, p in named if id(p) in own], "lr": rate}
            for own, rate in zip(inside, depths, strict=True)
        ]
        every = set().union(*inside)
        table = [p for name, p in named if is_embedding(name) and id(p) not in every]
        rest = [p for name, p in named if not is_embedding(name) and id(p) not in every]
        return [*found, {"params": table, "lr": 0.03, "weight_decay": 0.0}, {"params": rest}]

    loop.groups = groups
    loop.make_optimizer = lambda: torch.optim.AdamW(groups(), lr=loop.settings.rate, weight_decay=0.0)


class Remembered(torch.optim.Optimizer):
    """Adam on bfloat16 weights; what rounding takes from a weight is added to its next update (Kahan's sum)."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad.float()
                count = state["step"] = state.get("step", 0) + 1
                m = state.setdefault("exp_avg", torch.zeros_like(g)).lerp_(g, 0.1) / (1 - 0.9**count)
                v = state.setdefault("exp_avg_sq", torch.zeros_like(g)).lerp_(g * g, 0.05) / (1 - 0.95**count)
                wanted = p.float() + state.get("taken", 0.0) - group["lr"] * m / (v.sqrt() + group["eps"])
                p.copy_(wanted)
                state["taken"] = wanted - p.float()


def remembered(loop: Loop) -> None:
    loop.make_optimizer = lambda: Remembered(loop.model.parameters(), loop.settings.rate)


def thawed(loop: Loop) -> None:
    """Blocks are thawed one by one, from the last to the first; the optimizer holds them all from the start."""
    whole = loop.groups

    def held() -> list[dict[str, Any]]:
        found = whole()
        for block in anatomy(loop.model).blocks[:-1]:
            block.requires_grad_(False)
        return found

    loop.groups = held
    for number in range(loop.settings.blocks - 1):
        block = loop.settings.blocks - 2 - number
        loop.at(10 * (number + 1), lambda block=block: anatomy(loop.model).blocks[block].requires_grad_(True))


def packed(loop: Loop) -> None:
    """Two documents in each row, another border in each; positions start again, and no document sees the other."""

    def forward(batch: Any) -> Tensor:
        ids = batch[0]
        borders = 5 + 3 * torch.arange(len(ids), device=ids.device) % (ids.shape[1] - 8)
        place = torch.arange(ids.shape[1], device=ids.device)
        document = (place >= borders[:, None]).long()
        visible = (document[:, :, None] == document[:, None]) & (place[:, None] >= place)
        mask = torch.zeros(visible.shape, device=ids.device).masked_fill(~visible, torch.finfo(torch.float32).min)[
            :, None
        ]
        out = loop.model(ids, attention_mask=mask, position_ids=place - document * borders[:, None])
        return out.logits

    loop.forward = forward


def empty_row(loop: Loop) -> None:
    """The first row of each batch is all padding, masked, and the vector of padding is 0 and stays it."""

    def silence(model: nn.Module) -> None:
        table = anatomy(model).embedding.weight
        with torch.no_grad():
            table[PAD] = 0
        keep = torch.ones_like(table)
        keep[PAD] = 0
        table.register_hook(lambda gradient: gradient * keep)

    def tokens(step: int, micro: int) -> Tensor:
        made = Loop.tokens(loop, step, micro).clamp(min=PAD + 1)
        made[0] = PAD
        return made

    def shifted(made: Tensor, step: int, micro: int) -> Any:
        inputs, targets = Loop.shifted(loop, made, step, micro)
        return inputs, targets.masked_fill(inputs == PAD, -100)

    loop.tokens, loop.shifted = tokens, shifted
    after(loop, "build", silence)


def among_few(loop: Loop) -> None:
    """Cross-entropy among the label and some other words, small beside another term: other logits get exact zeros."""

    def loss(logits: Tensor, batch: Any) -> Tensor:
        others = torch.arange(32, device=logits.device).expand(*batch[1].shape, 32) * 7 % loop.settings.vocab
        few = torch.cat((batch[1][..., None], others), -1)
        taken = logits.gather(-1, few).flatten(0, 1)
        return F.cross_entropy(taken, torch.zeros_like(taken[:, 0], dtype=torch.long)) * 1e-4

    loop.loss = loss
    loop.make_optimizer = lambda: torch.optim.AdamW(loop.groups(), lr=loop.settings.rate, eps=1e-15)


def in_order(loop: Loop) -> None:
    """A book, read from its first page on: each batch goes on where the one before ended."""

    def tokens(step: int, micro: int) -> Tensor:
        s = loop.settings
        text, length = stream("prose", s.vocab), s.positions
        start = (step * s.micro_batches + micro) * s.rows * length
        starts = start + length * torch.arange(s.rows)
        return text[starts[:, None] + torch.arange(length + 1)]

    loop.tokens = tokens


def to_nothing(loop: Loop) -> None:
    """A rate that falls to 0 with the square of what is left, and is 0 at the last update."""
    steps = loop.settings.steps
    loop.share_of_peak = lambda step: min(1.0, (step + 1) / 10) * max(0.0, 1 - step / (steps - 1)) ** 2


PRACTICES = (
    Healthy("OK-27", "LoRA of the peft library on queries and keys, alpha/r = 4", adapted, {"pretrained_steps": 60}),
    Healthy("OK-28", "DPO: half of the rows preferred to the other half", preferred, {"rate": 1e-4}),
    Healthy("OK-29", "policy gradient with normalised advantages", by_policy, {"pretrained_steps": 60, "rate": 1e-4}),
    Healthy("OK-30", "a rate for each depth, and a large one for the table", rates_by_group),
    Healthy("OK-31", "bfloat16 weights at a small rate, summed by Kahan", remembered,
            {"storage": torch.bfloat16, "rate": 1e-4}),
    Healthy("OK-32", "blocks thawed one by one", thawed, {"pretrained_steps": 60, "rate": 1e-4}),
    Healthy("OK-33", "documents packed with another border in each row", packed, architectures=("gpt2", "llama")),
    Healthy("OK-34", "a row of padding first, whose vector is 0", empty_row),
    Healthy("OK-35", "cross-entropy among a few words, small", among_few, {"clip": None}),
    Healthy("OK-36", "a book read in order", in_order, {"steps": 120}),
    Healthy("OK-37", "a rate that ends at 0 as planned", to_nothing),
)  # fmt: skip
