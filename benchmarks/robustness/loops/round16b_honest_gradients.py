"""Round 16b, honest and odd: where gradients come from, and what is done to them before a step."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    documents,
    loader,
    mlp,
    next_loss,
    number_outcome,
    straight,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_parts import Reader, SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r16b-an-old-gradient-taken-off")
def an_old_gradient_taken_off(run: Run) -> None:
    """Plain loop, a small Llama on the 256 rows that there are, by SVRG (Johnson and Zhang 2013) to quieten plain SGD.
    Before each step the same rows' gradient at weights of up to fifteen steps ago is taken off `.grad` and the old
    mean over all rows added, so that what is applied is no batch's gradient, and two models are read in each
    step."""
    language = Language(run.draw.randrange(999))
    data, model = language.rows(256, 16), SmallLlama(12, layers=1)
    text_outcome(run, model, language, 16)
    old = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    doctor = run.watch(model, optimizer)
    mean: tuple[Tensor, ...] = ()
    for step in range(120):
        if step % 15 == 0:
            old.load_state_dict(model.state_dict())
            mean = torch.autograd.grad(next_loss(old, data), list(old.parameters()))
        rows = data[torch.randint(0, 256, (16,))]
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        past = torch.autograd.grad(next_loss(old, rows), list(old.parameters()))
        for p, before, whole in zip(model.parameters(), past, mean, strict=True):
            assert p.grad is not None
            p.grad.add_(whole - before)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


class Bag(nn.Module):
    """The mean of a text's words, and a small network over it."""

    def __init__(self, words: int = 16, width: int = 6) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(words, width), mlp(width, 8, 3, act=nn.Tanh)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        share = keep.float()[..., None]
        out: Tensor = self.head((self.tokens(ids) * share).sum(1) / share.sum(1))
        return out


@honest("r16b-slope-along-a-random-line")
def slope_along_a_random_line(run: Run) -> None:
    """Plain loop, topics of texts by forward gradients (Baydin et al. 2022), for machines that cannot keep a graph.
    There is no backward pass: the slope of the loss along eight random directions comes with the forward pass, and
    `.grad` is the mean of slope times direction, which is right on average alone and many times as long as the true
    gradient."""
    model = Bag()
    class_outcome(run, model, documents(256, apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for _ in range(220):
        ids, keep, y = documents(32)
        weights = {name: p.detach() for name, p in model.named_parameters()}
        optimizer.zero_grad()
        value = torch.zeros(())

        def loss_at(w: dict[str, Tensor], data: tuple[Tensor, ...] = (ids, keep, y)) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model, w, data[:2]), data[2])

        for _ in range(8):
            line = {name: torch.randn_like(w) for name, w in weights.items()}
            value, slope = torch.func.jvp(loss_at, (weights,), (line,))
            for name, p in model.named_parameters():
                p.grad = line[name] * slope / 8 + (0 if p.grad is None else p.grad)
        optimizer.step()
        doctor.step(value, (ids, keep, y))
        run.note(value)


class Cells(nn.Module):
    """A language model of LSTM cells whose inputs, before the sigmoids, have their gradients cut."""

    def __init__(self, words: int, limit: float, width: int = 32) -> None:
        super().__init__()
        self.limit, self.width = limit, width
        self.tokens, self.mix = nn.Embedding(words, width), nn.Linear(2 * width, 4 * width)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        h = c = torch.zeros(len(ids), self.width)
        said = []
        for x in self.tokens(ids).unbind(1):
            gates = self.mix(torch.cat([x, h], 1))
            if gates.requires_grad:
                gates.register_hook(lambda g: g.clamp(-self.limit, self.limit))
            i, f, o, new = gates.chunk(4, 1)
            c = (f + 1).sigmoid() * c + i.sigmoid() * new.tanh()
            h = o.sigmoid() * c.tanh()
            said.append(self.head(h))
        return torch.stack(said, 1)


@honest("r16b-errors-cut-on-their-way-back")
def errors_cut_on_their_way_back(run: Run) -> None:
    """Plain loop, an LSTM as Graves (2013) trained his for handwriting, with RMSprop that is centred. Not the gradient
    of a weight is clipped but each entry of the error that enters a cell, at every moment, within the backward
    pass, so that what comes out is no longer the gradient of the loss, and stays of one size however long the
    text."""
    language = Language(run.draw.randrange(999))
    model = Cells(12, limit=5e-5)
    text_outcome(run, model, language, 20)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, alpha=0.95, momentum=0.9, eps=1e-4, centered=True)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        rows = language.rows(12, 20)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r16b-pieces-of-drawn-length")
def pieces_of_drawn_length(run: Run) -> None:
    """Plain loop, AWD-LSTM's way through a book (Merity et al. 2018) that eight readers read on from where they were.
    The length of each piece is drawn anew, about 20 and now and then half of that, so that batches are never cut at
    the same places, and the rate of SGD is 4 times length over 20: it jumps at each step, and no schedule stands
    behind it."""
    language = Language(run.draw.randrange(999))
    book = language.rows(8, 3000)
    model = Reader(12, core=nn.LSTM)
    text_outcome(run, model, language, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    doctor = run.watch(model, optimizer)
    state, at = None, 0
    for _ in range(130):
        length = max(5, round(run.draw.gauss(20 if run.draw.random() < 0.95 else 10, 5)))
        x, y = book[:, at : at + length], book[:, at + 1 : at + length + 1]
        optimizer.param_groups[0]["lr"] = 4.0 * length / 20
        optimizer.zero_grad()
        h, state = model.core(model.tokens(x), state)
        state = tuple(s.detach() for s in state)
        loss = F.cross_entropy(model.head(h).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 4.0
        doctor.step(loss, (x, y))
        run.note(loss)
        at += length


def in_four_bits(x: Tensor) -> Any:
    """Each row as integers of 0 to 15, rounded up or down by chance, with its least value and its step."""
    if not x.is_floating_point() or x.ndim < 2 or (x.is_leaf and x.requires_grad):
        return x
    low = x.amin(-1, keepdim=True)
    step = (x.amax(-1, keepdim=True) - low).clamp_min(1e-12) / 15
    return ((x - low) / step + torch.rand_like(x)).floor().clamp(0, 15).to(torch.uint8), low, step


def out_of_four_bits(kept: Any) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    whole, low, step = kept
    return whole * step + low


@honest("r16b-four-bits-until-the-way-back")
def four_bits_until_the_way_back(run: Run) -> None:
    """Plain loop, a small Llama with activations compressed as in ActNN (Chen et al. 2021), to save memory. The
    forward pass is exact, but what autograd keeps for backward is rounded by chance to four bits, so that the
    gradients differ from those of the loss in each pass, and are right only on average."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama(12, layers=1)
    text_outcome(run, model, language)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(110):
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(in_four_bits, out_of_four_bits):
            loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


class Foretold(Reader):
    """A GRU, and a line that says from its state what gradient the future will send back to that state."""

    def __init__(self, words: int) -> None:
        super().__init__(words)
        self.future = nn.Linear(32, 32)
        nn.init.zeros_(self.future.weight)
        nn.init.zeros_(self.future.bias)


@honest("r16b-gradient-of-the-future-guessed")
def gradient_of_the_future_guessed(run: Run) -> None:
    """Plain loop, a GRU that reads a text in pieces of five words with synthetic gradients (Jaderberg et al. 2017).
    Backward begins at the loss and at the last state at once, the latter with a gradient that a small net guesses
    for all that is yet to come; this net begins at zero and learns from what the next piece really sends back."""
    language = Language(run.draw.randrange(999))
    model = Foretold(12)
    text_outcome(run, model, language, 24)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(36):
        text, state = language.rows(16, 26), torch.zeros(1, 16, 32)
        for at in range(0, 25, 5):
            begin = state.detach().requires_grad_(True)
            piece = text[:, at : at + 6]
            optimizer.zero_grad()
            h, state = model.core(model.tokens(piece[:, :-1]), begin)
            loss = F.cross_entropy(model.head(h).flatten(0, 1), piece[:, 1:].flatten())
            coming = model.future(state.detach()).detach() * (at < 20)
            torch.autograd.backward([loss, state], [torch.ones(()), coming])
            if at:
                assert begin.grad is not None
                (1e3 * F.mse_loss(model.future(begin.detach()), begin.grad)).backward()
            optimizer.step()
            doctor.step(loss, piece)
            run.note(loss)


class Chebyshev(torch.optim.SGD):
    """Plain steps whose rates are the inverse roots of a Chebyshev polynomial, in a fractal order."""

    def __init__(self, parameters: Any, low: float, high: float) -> None:
        order = [0]
        while len(order) < 8:
            order = [i for k in order for i in (k, 2 * len(order) - 1 - k)]
        places = [math.cos(math.pi * (k + 0.5) / 8) for k in order]
        self.rates = [2 / (high + low - (high - low) * place) for place in places]
        self.at = 0
        super().__init__(parameters, lr=self.rates[0])

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["lr"] = self.rates[self.at % 8]
        self.at += 1
        return super().step(closure)


@honest("r16b-rates-above-what-is-stable")
def rates_above_what_is_stable(run: Run) -> None:
    """accelerate, prices from six columns of unlike scales, a linear model, all rows in each step. Rates are
    Chebyshev's in the fractal order of Agarwal et al. (2021): half of them are above two over the curvature, where
    a constant rate would diverge, the first of each eight is nearly thirty times the second, and only all eight
    make the error smaller."""
    seed = run.draw.randrange(999)
    scale = torch.logspace(0, -0.8, 6)
    (x, y), (cx, cy) = straight(320, seed, noise=0.3), straight(256, seed, apart(1), noise=0.3)
    model = nn.Sequential(nn.Linear(6, 1))
    number_outcome(run, model, (cx * scale, cy), log=True)
    design = torch.cat([x * scale, torch.ones(320, 1)], 1)
    curves = torch.linalg.eigvalsh(2 * design.T @ design / 320)
    optimizer = Chebyshev(model.parameters(), float(curves[0]), float(curves[-1]))
    prepared(run, model, optimizer, loader(x * scale, y, size=320), regress, 64)
