"""A decoder of two blocks, its loop, and other ways to write the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import limpid

WORDS, LENGTH, WIDTH, HEADS = 61, 24, 48, 4


class Attention(nn.Module):
    """Causal, fused or by hand."""

    def __init__(self, by_hand: bool, drop: float) -> None:
        super().__init__()
        self.by_hand, self.drop = by_hand, drop
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.by_hand:
            hidden = torch.ones(t, t).triu(1).bool()
            scores = (q @ k.transpose(-1, -2) / math.sqrt(c // HEADS)).masked_fill(hidden, -math.inf)
            y = F.dropout(scores.softmax(-1), self.drop, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.drop if self.training else 0.0)
        out: Tensor = self.out(y.transpose(1, 2).reshape(b, t, c))
        return out


class Split(nn.Module):
    """The same with three maps instead of one."""

    def __init__(self, of: Attention) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.proj = of.out
        for part, weight, bias in zip(
            (self.q, self.k, self.v), of.qkv.weight.data.chunk(3), of.qkv.bias.data.chunk(3), strict=True
        ):
            part.weight.data.copy_(weight)
            part.bias.data.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (part(x).view(b, t, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(y.transpose(1, 2).reshape(b, t, c))
        return out


class OwnNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class Block(nn.Module):
    def __init__(self, by_hand: bool, drop: float, again: bool, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.again = again
        self.ln1, self.attn, self.ln2 = norm(), Attention(by_hand, drop), norm()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.drop = nn.Dropout(drop)

    def layers(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.ln1(x)))
        out: Tensor = x + self.drop(self.mlp(self.ln2(x)))
        return out

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.layers, x, use_reentrant=False) if self.again else self.layers(x)


def layer_norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


class Decoder(nn.Module):
    def __init__(
        self, by_hand: bool = False, drop: float = 0.0, again: bool = False, norm: Callable[[], nn.Module] = layer_norm
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(by_hand, drop, again, norm) for _ in range(2))
        self.ln, self.head = norm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.ln(x))
        return out


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Any:
        return self.inner(ids)


class Renamed(nn.Module):
    def __init__(self, of: Decoder) -> None:
        super().__init__()
        self.wte, self.wpe, self.h, self.norm_f, self.lm_head = of.tok, of.pos, of.blocks, of.ln, of.head

    def forward(self, ids: Tensor) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.norm_f(x))


def redrawn(model: nn.Module) -> Renamed:
    """Other numbers of the same law under other names; the random numbers of the loop stay as they are."""
    own = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            if float(p.std()):
                p.copy_(torch.randn(p.shape, generator=own) * p.std())
    return Renamed(model)  # type: ignore[arg-type]


def one_by_one(model: nn.Module) -> torch.optim.Optimizer:
    """A group for each parameter, from the last to the first."""
    return torch.optim.AdamW([{"params": [p], "lr": 1e-3} for p in reversed(list(model.parameters()))], lr=0.1)


def split(model: Decoder) -> Decoder:
    for block in model.blocks:
        block.attn = Split(block.attn)  # type: ignore[assignment, arg-type]
    return model


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.flatten(0, 1), y.flatten())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def trained(baseline: Path | list[Path] | None, steps: int = 5, **change: Any) -> tuple[Any, list[float]]:
    """A loop; `change` replaces what it does at one place."""
    does: dict[str, Any] = {
        "seed": 0, "make": Decoder, "wrap": lambda model: model, "threads": 1, "half": False, "micros": 1, "order": 1,
        "optimizer": adamw, "loss": cross_entropy, "drawn": 0, "evaluate": 0, "ids": torch.long, "batch": "ids",
        "shift": 1, "rows": 8, "scale": 1.0, "to_none": True,
        "before": lambda model: None, "after": lambda model, step: None,
    } | change  # fmt: skip
    torch.manual_seed(does["seed"])
    torch.set_num_threads(does["threads"])
    model = does["wrap"](does["make"]())
    does["before"](model)
    torch.rand(does["drawn"])
    data = torch.Generator().manual_seed(does["seed"])
    optimizer, losses = does["optimizer"](model), []
    with limpid.watch(model, optimizer, say=False, baseline=baseline) as doctor:
        for step in range(1, steps + 1):
            ids = torch.randint(0, WORDS, (does["rows"], LENGTH + 1), generator=data)
            x, y = ids[:, :-1].to(does["ids"]), ids[:, does["shift"] : LENGTH + does["shift"]]
            optimizer.zero_grad(set_to_none=does["to_none"])
            total = 0.0
            for a, b in list(zip(x.chunk(does["micros"]), y.chunk(does["micros"]), strict=True))[:: does["order"]]:
                with torch.autocast("cpu", torch.bfloat16, enabled=does["half"]):
                    z = model(a)
                loss = does["loss"](z.float(), b) / does["micros"]
                (loss * does["scale"]).backward()
                total += float(loss.detach())
            for p in model.parameters() if does["scale"] != 1 else ():
                p.grad.div_(does["scale"])
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            does["after"](model, step)
            if does["evaluate"] and step % does["evaluate"] == 0:
                with torch.no_grad():
                    model.eval()(x)
                torch.rand(3)
                model.train()
            doctor.step(total, {"ids": x, "pair": (x, y), "named": {"input_ids": x, "labels": y}}[does["batch"]])
            losses.append(total)
    torch.set_num_threads(1)
    return doctor, losses


def unlike(doctor: Any) -> list[Any]:
    return [finding for finding in doctor.findings if finding.rule == "not-as-baseline"]
