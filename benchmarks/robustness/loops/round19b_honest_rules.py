"""Round 19b, honest and odd: rules that move the weights, and rates that nobody set."""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, stdev
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Language,
    apart,
    class_outcome,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


class CoinBetting(torch.optim.Optimizer):
    """Each weight bets on the sign of its next gradient; what it has won decides how far it stands from its start."""

    def __init__(self, parameters: Any, alpha: float = 100.0) -> None:
        super().__init__(parameters, {"alpha": alpha})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = None
        if closure:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["start"] = p.clone()
                    state["largest"] = torch.full_like(p, 1e-8)
                    for name in ("lengths", "won", "sum"):
                        state[name] = torch.zeros_like(p)
                g = -p.grad
                state["largest"] = torch.maximum(state["largest"], g.abs())
                state["lengths"] += g.abs()
                state["won"] = (state["won"] + (p - state["start"]) * g).clamp_min(0)
                state["sum"] += g
                bound = torch.maximum(state["lengths"] + state["largest"], group["alpha"] * state["largest"])
                share = state["sum"] / (state["largest"] * bound)
                p.copy_(state["start"] + share * (state["largest"] + state["won"]))
        return loss


@honest("r19b-bets-in-place-of-a-rate")
def bets_in_place_of_a_rate(run: Run) -> None:
    """Lightning, a network for a table by coin betting (COCOB, Orabona and Tommasi 2017). There is no rate and not even
    a setting of that name in the groups: each weight is written anew, from where it started and from the sum of all its
    gradients so far times what its bets have won."""
    seed = run.draw.randrange(999)
    net = mlp(6, 48, 48, 1)
    number_outcome(run, net, table(300, seed, apart(1)))
    module = lit(net, regress, lambda m: CoinBetting(m.parameters()))
    fit(run, module, loader(*table(1500, seed, apart(2)), size=50), 150)


class TwoSmallMatrices(torch.optim.Optimizer):
    """Natural steps: each layer's curvature is the product of that of its inputs and that of its outputs."""

    def __init__(self, model: nn.Module, lr: float, damping: float = 0.02, bound: float = 1e-2) -> None:
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        super().__init__(model.parameters(), {"lr": lr, "damping": damping, "bound": bound})
        self.listening, self.inverses = False, {}
        self.curvature: dict[nn.Module, list[Tensor | None]] = {layer: [None, None] for layer in self.layers}
        for layer in self.layers:
            layer.register_forward_pre_hook(self.see_inputs)
            layer.register_full_backward_hook(self.see_slopes)

    def keep(self, layer: nn.Module, side: int, rows: Tensor, scale: float) -> None:
        new, old = scale * rows.T @ rows / len(rows), self.curvature[layer][side]
        self.curvature[layer][side] = new if old is None else 0.8 * old + 0.2 * new

    def see_inputs(self, layer: nn.Module, given: Any) -> None:
        if self.listening:
            rows = given[0].detach()
            self.keep(layer, 0, torch.cat([rows, torch.ones(len(rows), 1)], 1), 1.0)

    def see_slopes(self, layer: nn.Module, given: Any, out: Any) -> None:
        if self.listening:
            self.keep(layer, 1, out[0].detach(), len(out[0]) ** 2)

    @torch.no_grad()
    def invert(self) -> None:
        damping = math.sqrt(self.param_groups[0]["damping"])
        for layer, sides in self.curvature.items():
            self.inverses[layer] = [torch.linalg.inv(side + damping * torch.eye(len(side))) for side in sides]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        moves, decrease = [], 0.0
        for layer in self.layers:
            g = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
            inputs, outputs = self.inverses[layer]
            move = outputs @ g @ inputs
            decrease += group["lr"] ** 2 * float((move * g).sum())
            moves.append(move)
        share = min(1.0, math.sqrt(group["bound"] / max(decrease, 1e-12)))
        for layer, move in zip(self.layers, moves, strict=True):
            layer.weight -= group["lr"] * share * move[:, :-1]
            layer.bias -= group["lr"] * share * move[:, -1]


@honest("r19b-curvature-as-two-small-matrices")
def curvature_as_two_small_matrices(run: Run) -> None:
    """Plain loop, a tanh network for pictures by K-FAC (Martens and Grosse 2015). Every fourth step a second backward
    pass, of labels drawn from the model's own answers, fills two matrices a layer, and its gradient is thrown away; the
    step is the gradient between their inverses, shortened where the model's answers would change too much."""
    seed = run.draw.randrange(999)
    model = mlp(64, 32, 16, 4, act=nn.Tanh)
    x, y = pictures(256, seed, own=apart(1))
    class_outcome(run, model, (x.flatten(1), y))
    optimizer = TwoSmallMatrices(model, lr=0.2)
    doctor = run.watch(model, optimizer)
    for step in range(100):
        x, y = pictures(64, seed)
        x = x.flatten(1)
        if step % 4 == 0:
            optimizer.listening = True
            scores = model(x)
            drawn = torch.multinomial(scores.detach().softmax(1), 1).squeeze(1)
            F.cross_entropy(scores, drawn).backward()
            optimizer.listening = False
            optimizer.invert()
        optimizer.zero_grad()
        loss = classify(model, (x, y))
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class WithASpread(torch.optim.Optimizer):
    """Variational online Newton: keeps a mean and a spread for each weight; gradients are taken at draws of them."""

    def __init__(self, parameters: Any, lr: float, rows: float, first: float = 0.1, decay: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "rows": rows, "decay": decay, "betas": (0.9, 0.995)})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] |= {"h": torch.full_like(p, first), "mean": torch.zeros_like(p), "steps": 0}

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """The weights are a draw within, and their means again after it."""
        kept = []
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    spread = 1 / (group["rows"] * (self.state[p]["h"] + group["decay"])).sqrt()
                    kept.append((p, p.clone()))
                    self.state[p]["noise"] = spread * torch.randn_like(p)
                    p.add_(self.state[p]["noise"])
        yield
        with torch.no_grad():
            for p, mean in kept:
                p.copy_(mean)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (beta1, beta2), decay = group["betas"], group["decay"]
            for p in group["params"]:
                state = self.state[p]
                state["steps"] += 1
                h, noise = state["h"], state["noise"]
                seen = p.grad * noise * group["rows"] * (h + decay)
                state["mean"].lerp_(p.grad, 1 - beta1)
                more = 0.5 * (1 - beta2) ** 2 * (h - seen).square() / (h + decay)
                state["h"] = h + (1 - beta2) * (seen - h) + more
                slope = state["mean"] / (1 - beta1 ** state["steps"])
                p.sub_(group["lr"] * (slope + decay * p) / (state["h"] + decay))


@honest("r19b-spread-kept-by-the-rule")
def spread_kept_by_the_rule(run: Run) -> None:
    """Plain loop, an encoder of documents by IVON (Shen et al. 2024; the library ivon). Forward and backward pass see
    weights drawn around a mean, anew in each step, and they are put back before the step; from gradient times noise the
    rule learns a curvature, which is both the divisor of the step and the width of the next draw."""
    model = Classifier()
    class_outcome(run, model, documents(256, apart(1)))
    rows = documents(600, apart(run.draw.randrange(999)))
    optimizer = WithASpread(model.parameters(), lr=0.03, rows=20_000)
    doctor = run.watch(model, optimizer)
    for _ in range(5):
        for ids, keep, y in loader(*rows, size=24):
            with optimizer.drawn():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(ids, keep), y)
                loss.backward()
            optimizer.step()
            doctor.step(loss, (ids, keep, y))
            run.note(loss)


class PassingOver(torch.optim.AdamW):
    """AdamW that leaves a step out whose gradient is much longer than those of late."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.lengths: deque[float] = deque(maxlen=64)
        self.passed_over = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        length = float(torch.stack([g.norm() for g in gradients]).norm())
        known = list(self.lengths)
        self.lengths.append(length)
        if len(known) >= 16 and length > fmean(known) + 4 * stdev(known):
            self.passed_over += 1
            return None
        return super().step(closure)


@honest("r19b-updates-passed-over-at-a-spike")
def updates_passed_over_at_a_spike(run: Run) -> None:
    """transformers' Trainer, a small Llama with OLMo's SkipStepAdamW (OLMo et al. 2025) in place of its own optimizer
    and of clipping. One row in fifty of the corpus is a word repeated, as dumps of the web have them; where a gradient
    is far longer than those of late, nothing moves, neither weights nor moments, and the schedule goes on."""
    language = Language(run.draw.randrange(999))
    model = llama(vocab_size=12, num_hidden_layers=1, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(1600, 24, apart(2))
    rows[::50] = rows[::50, :1]
    optimizer = PassingOver(model.parameters(), lr=1e-2, weight_decay=0.1)
    data = examples(input_ids=rows, labels=rows)
    trainer = hf_trainer(run, model, data, 100, max_grad_norm=0.0, more={"optimizers": (optimizer, None)})
    trainer.train()


class ForgettingItsMomentum(torch.optim.SGD):
    """Nesterov's method with a growing momentum that begins anew where the last move went uphill."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr, momentum=0.1, nesterov=True)
        self.since = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        group = self.param_groups[0]
        moves = [(p, self.state[p].get("momentum_buffer")) for p in group["params"]]
        uphill = sum(float((p.grad * -buffer).sum()) for p, buffer in moves if buffer is not None)
        self.since = self.since + 1
        if uphill > 0:
            self.since = 1
            for _, buffer in moves:
                if buffer is not None:
                    buffer.zero_()
        group["momentum"] = self.since / (self.since + 3)
        return super().step(closure)


@honest("r19b-momentum-forgotten-when-it-climbs")
def momentum_forgotten_when_it_climbs(run: Run) -> None:
    """accelerate, a linear classifier on columns of very different widths, all rows in one batch, by Nesterov's method
    with adaptive restart (O'Donoghue and Candès 2015). Momentum grows towards one and falls back to a quarter, with its
    buffer emptied, whenever the last move and the gradient disagree; the same batch comes in every step."""
    own = apart(run.draw.randrange(999))
    widths = torch.logspace(0, -1.5, 20)
    truth = 3 * torch.randn(20, 3, generator=own)
    x = widths * torch.randn(700, 20, generator=own)
    y = (x @ truth - torch.rand(700, 3, generator=own).log().neg().log()).argmax(1)
    net = nn.Linear(20, 3)
    class_outcome(run, net, (x[400:], y[400:]))
    optimizer = ForgettingItsMomentum(net.parameters(), lr=1.0)
    prepared(run, net, optimizer, loader(x[:400], y[:400], size=400), classify, 120)


@honest("r19b-averages-once-it-no-longer-falls")
def averages_once_it_no_longer_falls(run: Run) -> None:
    """Plain loop, an LSTM of words as in AWD-LSTM (Merity et al. 2018). Plain SGD at a rate of ten with clipping at a
    quarter, until no check of the last five has brought anything new; then torch's ASGD at the same rate takes over for
    good, and from there on checks are done with its averages in the place of the weights, which are put back."""
    language = Language(run.draw.randrange(999), sharp=1.2)
    model = Reader(12, core=nn.LSTM)
    check, held = language.rows(96, 24, apart(1)), language.rows(48, 24, apart(3))
    rows = language.rows(256, 24, apart(2))
    averages: list[Any] = []

    @torch.no_grad()
    def on(these: Tensor) -> float:
        kept = [p.clone() for p in model.parameters()]
        for optimizer in averages:
            for p in model.parameters():
                p.copy_(optimizer.state[p].get("ax", p))
        value = float(next_loss(model, these))
        for p, now in zip(model.parameters(), kept, strict=True):
            p.copy_(now)
        return value

    outcome(run, lambda: on(check))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=10.0, weight_decay=1.2e-6)
    doctor = run.watch(model, optimizer)
    checks: list[float] = []
    for step in range(160):
        batch = rows[torch.randint(0, len(rows), (16,))]
        optimizer.zero_grad()
        loss = next_loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
        if step % 5 == 4:
            checks.append(on(held))
            if not averages and len(checks) > 5 and min(checks[-5:]) > min(checks[:-5]):
                doctor.close()
                optimizer = torch.optim.ASGD(model.parameters(), lr=10.0, t0=0, lambd=0.0, weight_decay=1.2e-6)
                averages.append(optimizer)
                doctor = run.watch(model, optimizer)
