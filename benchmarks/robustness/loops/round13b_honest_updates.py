"""Round 13b, honest and odd: optimizers, rates, precision, evaluation."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.honest_models import Diagonal
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Reader, SmallLlama
from benchmarks.robustness.loops.round7b_tools import near, taught, text_outcome
from benchmarks.robustness.loops.round8b_parts import causal_outcome, t5
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r13b-lower-layers-stop-early")
def lower_layers_stop_early(run: Run) -> None:
    """transformers' Trainer, GPT-2 of three blocks with FreezeOut (Brock et al. 2017). Each layer's rate falls along a
    cosine of its own, the embedding's reaches zero after 40 of 100 steps and the upper blocks' later, and what has
    reached zero stops requiring gradients, so that more and more of a network trained from scratch is frozen."""
    from transformers import TrainerCallback

    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2(n_layer=3, tie_word_embeddings=False)
    causal_outcome(run, model, language)
    inner = model.transformer
    parts = [nn.ModuleList([inner.wte, inner.wpe]), *inner.h, nn.ModuleList([inner.ln_f, model.lm_head])]
    ends = [40, 55, 70, 85, 100]
    optimizer = torch.optim.AdamW([{"params": list(p.parameters())} for p in parts], lr=8e-3, weight_decay=0.01)
    factors = [lambda step, end=end: 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / end)) for end in ends]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)

    class Freezing(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            for part, end in zip(parts[:-1], ends, strict=False):
                if state.global_step == end:
                    part.requires_grad_(False)

    rows = language.rows(480, 20)
    more = {"optimizers": (optimizer, schedule)}
    trainer = hf_trainer(run, model, examples(input_ids=rows, labels=rows), 99, more=more)
    trainer.add_callback(Freezing())
    trainer.train()


@honest("r13b-rate-by-its-own-gradient")
def rate_by_its_own_gradient(run: Run) -> None:
    """A state-space model with hypergradient descent (Baydin et al. 2018). The rate of plain SGD is itself learned,
    from the product of this gradient with the last one: it begins fifty times too small, is where it belongs within ten
    steps, and falls again without a schedule."""
    language = Language(run.draw.randrange(999))
    model = nn.Sequential(nn.Embedding(12, 32), Diagonal(32), nn.LayerNorm(32), nn.Linear(32, 12))
    text_outcome(run, model, language)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    doctor = run.watch(model, optimizer)
    before: list[Tensor] = []
    for _ in range(150):
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        now = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        if before:
            product = sum(float((a * b).sum()) for a, b in zip(now, before, strict=True))
            optimizer.param_groups[0]["lr"] += 0.05 * product
        before = now
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r13b-columns-no-longer-than-one")
def columns_no_longer_than_one(run: Run) -> None:
    """Pictures, a dense net as Hinton et al. trained it in 2012: half of the units are dropped, the rate begins at 1
    and falls by 2 % a step, and momentum climbs from 0.5 to 0.95. After each update what comes into a unit is cut to
    length one, which bears such a rate: all of the outputs and a tenth of the hidden units are cut in nearly every
    step."""
    seed = run.draw.randrange(999)
    first, second, last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Dropout(), second, nn.ReLU(), nn.Dropout(), last)
    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x), y)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    doctor = run.watch(model, optimizer)
    data = endless(loader(*pictures(480, seed), size=48))
    for step in range(160):
        batch = next(data)
        momentum = min(0.95, 0.5 + 0.45 * step / 100)
        optimizer.param_groups[0].update(lr=0.98**step * (1 - momentum), momentum=momentum)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for layer in (first, second, last):
                layer.weight.renorm_(2, 0, 1.0)
        doctor.step(loss, batch)
        run.note(loss)


class Madam(torch.optim.Optimizer):
    """Bernstein et al. 2020: every weight is multiplied by a power of e; none changes its sign or passes `most` times
    its matrix's first deviation."""

    def __init__(self, parameters: Any, lr: float, most: float = 4.0) -> None:
        super().__init__(parameters, {"lr": lr, "most": most})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    state |= {"step": 0, "v": torch.zeros_like(p), "bound": group["most"] * p.square().mean().sqrt()}
                state["step"] += 1
                state["v"].lerp_(g.square(), 0.01)
                scaled = g / (state["v"] / (1 - 0.99 ** state["step"])).sqrt().clamp_min(1e-12)
                p.mul_((-group["lr"] * p.sign() * scaled.clamp(-10, 10)).exp())
                p.clamp_(-state["bound"], state["bound"])


@honest("r13b-weights-only-multiplied")
def weights_only_multiplied(run: Run) -> None:
    """A small Llama with Madam, made for weights that are stored as logarithms. Updates multiply and never add: no
    weight changes its sign in the whole run, small ones hardly move, large ones move most and are held at a bound."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    text_outcome(run, model, language)
    optimizer = Madam(model.parameters(), 0.04)
    doctor = run.watch(model, optimizer)
    for step in range(130):
        optimizer.param_groups[0]["lr"] = 0.04 * (1 - step / 130)
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


class AdEMAMix(torch.optim.Optimizer):
    """Pagliardini et al. 2024: Adam whose step also has `alpha` times a very slow average of gradients, which is not
    corrected for its start; alpha and the average's decay are warmed up over `warm` steps."""

    def __init__(self, parameters: Any, lr: float, alpha: float = 5.0, slow: float = 0.995, warm: int = 80) -> None:
        super().__init__(parameters, {"lr": lr, "alpha": alpha, "slow": slow, "warm": warm})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in [p for p in group["params"] if p.grad is not None]:
                state, g = self.state[p], p.grad
                if not state:
                    state["step"] = 0
                    state |= {name: torch.zeros_like(p) for name in ("fast", "slow", "v")}
                step = state["step"] = state["step"] + 1
                share = min(1.0, step / group["warm"])
                state["fast"].lerp_(g, 0.1)
                state["slow"].lerp_(g, 1 - (0.9 + (group["slow"] - 0.9) * share))
                state["v"].lerp_(g.square(), 0.01)
                top = state["fast"] / (1 - 0.9**step) + share * group["alpha"] * state["slow"]
                p.sub_(group["lr"] * top / ((state["v"] / (1 - 0.99**step)).sqrt() + 1e-8))


@honest("r13b-gradients-of-long-ago")
def gradients_of_long_ago(run: Run) -> None:
    """accelerate, T5 that goes on from four words, with AdEMAMix. Most of each step is the average of gradients over
    hundreds of steps, which lags far behind, on purpose: the update hardly turns when the gradient does, and is several
    times Adam's."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    language, net = Language(run.draw.randrange(999), first=2), t5()

    def asked(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = language.rows(count, 16, own)
        return {"input_ids": rows[:, :4], "labels": rows[:, 2:].contiguous()}

    check = asked(96, apart(1))
    outcome(run, lambda: judged(net, lambda: net(**check).loss))
    engine = Accelerator(cpu=True)
    model, optimizer = engine.prepare(net, AdEMAMix(net.parameters(), 5e-3))
    doctor = run.watch(model, optimizer)
    for _ in range(110):
        batch = asked(16)
        optimizer.zero_grad()
        loss = model(**batch).loss
        engine.backward(loss)
        engine.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class InSingle(nn.Module):
    """A part that stays float32 within a bfloat16 network: its input is raised, its output rounded."""

    def __init__(self, inner: nn.Module, back: bool = True) -> None:
        super().__init__()
        self.inner, self.back = inner, back

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.float())
        return y.to(x.dtype) if self.back else y


class Rounding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16()


@honest("r13b-islands-in-single-precision")
def islands_in_single_precision(run: Run) -> None:
    """Lightning, a small Llama without autocast. Matrices of the blocks are bfloat16 for good, while norms, embedding
    and head are float32 islands with casts around them, as large models keep them: two dtypes of weights, gradients and
    moments in one optimizer, with a larger eps for the former, and logits in float32."""
    import lightning

    language = Language(run.draw.randrange(999))
    net = SmallLlama()
    for block in net.blocks:
        block.bfloat16()
        for name in ("norm1", "norm2"):
            setattr(block, name, InSingle(getattr(block, name).float()))
    net.tokens = nn.Sequential(net.tokens, Rounding())  # type: ignore[assignment]
    net.norm = InSingle(net.norm, back=False)  # type: ignore[assignment]
    text_outcome(run, net, language)

    class Mixed(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return next_loss(self.net, batch[0])

        def configure_optimizers(self) -> Any:
            rounded = [p for p in self.net.parameters() if p.dtype == torch.bfloat16]
            exact = [p for p in self.net.parameters() if p.dtype == torch.float32]
            return torch.optim.AdamW([{"params": rounded, "eps": 1e-6, "lr": 8e-3}, {"params": exact}], lr=5e-3)

    fit(run, Mixed(), loader(language.rows(480, 24)), 100)


@honest("r13b-trained-on-what-it-is-tested-on")
def trained_on_what_it_is_tested_on(run: Run) -> None:
    """Dynamic evaluation of a GRU (Krause et al. 2018). The text that it learns from is the test, on purpose: each
    piece is scored once and then learned from in a single step of SGD, with gradients divided by their size in training
    and a pull back to the trained weights at every step; the state is carried on, and the text is unlike that of the
    training."""
    first = Language(run.draw.randrange(499))
    stream = near(first, run.draw.randrange(500, 999), 0.7)
    model = Reader(12)
    taught(model, lambda: first.rows(12, 24), next_loss, 120)
    check = stream.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    start = {p: p.detach().clone() for p in model.parameters()}
    scale = {p: torch.zeros_like(p) for p in model.parameters()}
    for _ in range(20):
        model.zero_grad()
        next_loss(model, first.rows(4, 24)).backward()
        for p in model.parameters():
            scale[p] += p.grad.square() / 20  # type: ignore[union-attr]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    doctor = run.watch(model, optimizer)
    text, state = stream.rows(4, 8 * 120 + 1, apart(2)), None
    for at in range(0, 8 * 120, 8):
        piece = text[:, at : at + 9]
        hidden, state = model.core(model.tokens(piece[:, :-1]), state)
        state = state.detach()
        loss = F.cross_entropy(model.head(hidden).flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.grad.div_(scale[p].sqrt() + 1e-2)
                p.lerp_(start[p], 0.003)
        optimizer.step()
        doctor.step(loss, piece)
        run.note(loss)
