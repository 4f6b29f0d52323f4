"""Long honest runs with the doctor beside them: every alarm is a false one.

    python -m benchmarks.robustness.long [--steps 20000] [--only NAME] [--json FILE]

Tiny models in many combinations of architecture, update rule, schedule, precision and order of rows, each with its own
seed. With --json, runs that the file holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.doctor import QUIET, told
from benchmarks.robustness.loops.honest_models import Recurrent
from benchmarks.robustness.loops.optimizers import Lion, ScheduleFree, groups
from benchmarks.robustness.loops.text import corpus, crops
from benchmarks.robustness.loops.training import gpt2, llama, next_token
from benchmarks.robustness.loops.transformer import Transformer
from torch import Tensor, nn

import limpid

Rows = Iterator[tuple[Tensor, Tensor]]
TINY = {"width": 16, "layers": 2, "length": 16}


@dataclass(frozen=True)
class Long:
    """What a run is made of."""

    name: str
    model: Callable[[], Any] = lambda: Transformer(**TINY)
    optimizer: Callable[[nn.Module], Any] = lambda model: torch.optim.AdamW(groups(model), lr=2e-3)
    factor: Callable[[float], float] = lambda part: 0.55 + 0.45 * math.cos(math.pi * part)
    """Of the rate, at this part of the run, after the warmup."""
    order: str = "drawn"
    characters: int = 400_000
    clip: float = 1.0
    autocast: bool = False
    pieces: int = 1


def scores(model: Any, x: Tensor) -> Tensor:
    out = model(x)
    out = getattr(out, "logits", out)
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found


def rows(order: str, tokens: Tensor) -> Rows:
    """Four rows of sixteen tokens: at random places, in passes over shuffled places, in the order of the text."""
    while True:
        if order == "drawn":
            yield crops(tokens, 4, 16)
            continue
        places = torch.arange(0, len(tokens) - 17, 16)
        places = places[torch.randperm(len(places))] if order == "passes" else places
        for some in places.split(4):
            block = torch.stack([tokens[at : at + 17] for at in some.tolist()])
            yield block[:, :-1], block[:, 1:]


def constant(part: float) -> float:
    return 1.0


def stable_then_down(part: float) -> float:
    return min(1.0, max(1e-3, 5 * (1 - part)))


def restarts(part: float) -> float:
    return 0.55 + 0.45 * math.cos(math.pi * (part * 8 % 1))


def adam(**options: Any) -> Callable[[nn.Module], Any]:
    return lambda model: torch.optim.AdamW(groups(model), **({"lr": 2e-3} | options))


RUNS = (
    Long("adamw-cosine"),
    Long("adamw-constant", factor=constant),
    Long("adamw-stable-then-down", factor=stable_then_down),
    Long("adamw-warm-restarts", factor=restarts),
    Long("passes-over-a-small-text", order="passes", characters=20_000),
    Long("passes-over-a-text", order="passes"),
    Long("the-order-of-the-text", order="in order"),
    Long("gpt2", model=lambda: gpt2(n_embd=16, n_positions=16)),
    Long("llama", model=lambda: llama(hidden_size=16, intermediate_size=32)),
    Long("llama-bf16-autocast", model=lambda: llama(hidden_size=16, intermediate_size=32), autocast=True),
    Long("lstm", model=lambda: Recurrent(24), optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-3)),
    Long("sgd-with-momentum", optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)),
    Long("lion", optimizer=lambda m: Lion(m.parameters(), lr=2e-4, decay=0.1)),
    Long("nadam", optimizer=lambda m: torch.optim.NAdam(m.parameters(), lr=1e-3)),
    Long("schedule-free", optimizer=lambda m: ScheduleFree(m.parameters()), factor=constant, clip=0.0),
    Long("rmsprop", optimizer=lambda m: torch.optim.RMSprop(m.parameters(), lr=5e-4)),
    Long("a-low-rate-and-no-clipping", optimizer=adam(lr=3e-5), clip=0.0),
    Long("a-high-rate-clipped", optimizer=adam(lr=8e-3), clip=0.5),
    Long("four-pieces", pieces=4),
    Long("strong-decay", optimizer=adam(weight_decay=0.5)),
)


def train(run: Long, steps: int) -> dict[str, Any]:
    """The losses at both ends, the findings above notice, the time."""
    torch.manual_seed(sum(map(ord, run.name)))
    model = run.model()
    optimizer = run.optimizer(model)
    warm = steps // 100
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (step + 1) / warm if step < warm else run.factor((step - warm) / (steps - warm))
    )
    source = rows(run.order, corpus(1, characters=run.characters))
    doctor = limpid.watch(model, optimizer, scheduler=schedule, say=False)
    losses, start = [], time.process_time()
    for _ in range(steps):
        pieces, total = [next(source) for _ in range(run.pieces)], 0.0
        optimizer.zero_grad()
        for x, y in pieces:
            with torch.autocast("cpu", torch.bfloat16, enabled=run.autocast):
                loss = next_token(scores(model, x), y) / run.pieces
            loss.backward()
            total += float(loss.detach())
        if run.clip:
            nn.utils.clip_grad_norm_(model.parameters(), run.clip)
        optimizer.step()
        doctor.step(total, pieces if run.pieces > 1 else pieces[0])
        schedule.step()
        losses.append(total)
    doctor.close()
    ends = [sum(part) / len(part) for part in (losses[:100], losses[-100:])]
    return {
        "name": run.name, "steps": steps, "losses": ends, "seconds": round(time.process_time() - start, 1),
        "alarms": [told(one) for one in doctor.findings if one.severity != QUIET],
        "notices": [told(one) for one in doctor.findings if one.severity == QUIET],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for run in RUNS:
        if options.only not in run.name or run.name in {one["name"] for one in found}:
            continue
        found.append(train(run, options.steps))
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
        one = found[-1]
        named = ", ".join(f"{a['rule']} at {a['step']}" for a in one["alarms"]) or "silent"
        print(
            f"{run.name:28} {one['losses'][0]:.3f} -> {one['losses'][1]:.3f}  {one['seconds']:6.0f} s  {named}",
            flush=True,
        )
    print(f"{sum(bool(one['alarms']) for one in found)} of {len(found)} accused")


if __name__ == "__main__":
    main()
