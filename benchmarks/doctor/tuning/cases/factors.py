"""Low-rank factors that people put beside the matrices of a model of transformers by hand."""

from __future__ import annotations

import torch
from benchmarks.doctor.tuning.case import Bench, fault, honest
from benchmarks.doctor.tuning.cases.loops import chat, padded
from benchmarks.doctor.tuning.models import sums
from torch import Tensor, nn


class LowRank(nn.Module):
    """A linear map with factors beside it, as in loralib."""

    def __init__(self, base: nn.Linear, rank: int, begin: str) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling, self.active = 2.0, True
        if begin == "both at 0":
            nn.init.zeros_(self.lora_A)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base_layer(x)
        return y + self.scaling * (x @ self.lora_A.T @ self.lora_B.T) if self.active else y

    @torch.no_grad()
    def merge(self) -> None:
        self.base_layer.weight += self.scaling * self.lora_B @ self.lora_A


def adapt(bench: Bench, fault: str = "", steps: int = 60, rate: float = 1e-3) -> None:
    tokenizer = bench.chat_tokenizer()
    model = bench.chat_model(tokenizer).requires_grad_(False)
    adapted = []
    for block in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            map_ = LowRank(getattr(block.self_attn, name), 4, fault)
            setattr(block.self_attn, name, map_)
            adapted.append(map_)
    trained = [p for p in model.parameters() if p.requires_grad]
    if fault == "not in the optimizer":
        trained = [model.lm_head.weight.requires_grad_(True)]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    if fault == "switched off":
        for map_ in adapted:
            map_.active = False
        model.lm_head.weight.requires_grad_(True)
        optimizer.add_param_group({"params": [model.lm_head.weight]})
    doctor = bench.watch(model, optimizer, tokenizer=tokenizer)
    for step in range(steps):
        if fault == "merged and kept" and step == steps // 2:
            for map_ in adapted:
                map_.merge()
        batch = padded([chat(tokenizer, f"{a}+{b}", str(a + b)) for a, b in sums(8, step)], tokenizer.pad_token_id)
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        doctor.step(loss, batch)


@fault("factors-both-at-zero", wanted=("factor|low.rank|adapter",))
def _(bench: Bench, wrong: bool) -> None:
    """A and B both begin at 0."""
    adapt(bench, "both at 0" if wrong else "", steps=12)


@fault("factors-not-in-the-optimizer", wanted=("factor|low.rank|lora", "optimizer"))
def _(bench: Bench, wrong: bool) -> None:
    """The optimizer holds the head alone."""
    adapt(bench, "not in the optimizer" if wrong else "", steps=12)


@fault("adapter-switched-off", wanted=("factor|low.rank|adapter|lora", "off|0|gradient"))
def _(bench: Bench, wrong: bool) -> None:
    """The adapter is not active while it is trained; the head learns."""
    adapt(bench, "switched off" if wrong else "", steps=12)


@fault("merged-and-kept", wanted=("adapter|factor", "merged|already"))
def _(bench: Bench, wrong: bool) -> None:
    """Half way the adapter is merged into the base and stays active."""
    adapt(bench, "merged and kept" if wrong else "", steps=110, rate=5e-3)


@honest("factors-warm-up-from-zero")
def _(bench: Bench) -> None:
    """A rate of 0 at the first step: B is still 0 after it."""
    tokenizer = bench.chat_tokenizer()
    model = bench.chat_model(tokenizer).requires_grad_(False)
    for block in model.model.layers:
        block.self_attn.q_proj = LowRank(block.self_attn.q_proj, 4, "")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5))
    doctor = bench.watch(model, optimizer, scheduler=schedule, tokenizer=tokenizer)
    for step in range(30):
        batch = padded([chat(tokenizer, f"{a}+{b}", str(a + b)) for a, b in sums(8, step)], tokenizer.pad_token_id)
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        doctor.step(loss, batch)
