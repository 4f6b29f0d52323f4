"""Round 13b, honest and odd: what becomes of gradients before the update."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    cnn,
    documents,
    endless,
    judged,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r13b-gradients-kept-as-momentum")
def gradients_kept_as_momentum(run: Run) -> None:
    """A small GPT in a teaching loop without an optimizer's momentum. Gradients are never set to zero: they are
    multiplied by 0.9 after each step and backward adds to what is left, so that `.grad` is the momentum buffer of
    heavy-ball SGD."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    doctor = run.watch(model, optimizer)
    for _ in range(130):
        rows = language.rows(12, 24)
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(0.9)


class GaLore(torch.optim.Optimizer):
    """Zhao et al. 2024: Adam on each matrix's gradient within its `rank` largest left directions, found anew every
    `every` steps."""

    def __init__(self, parameters: Any, lr: float, rank: int = 4, every: int = 25) -> None:
        super().__init__(parameters, {"lr": lr, "rank": rank, "every": every})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad
                step = state["step"] = state.get("step", 0) + 1
                if g.ndim == 2:
                    if step % group["every"] == 1:
                        state["basis"] = torch.linalg.svd(g, full_matrices=False)[0][:, : group["rank"]]
                    g = state["basis"].T @ g
                m = state["m"] = state.get("m", torch.zeros_like(g)).lerp(g, 0.1)
                v = state["v"] = state.get("v", torch.zeros_like(g)).lerp(g.square(), 0.01)
                move = m / (1 - 0.9**step) / ((v / (1 - 0.99**step)).sqrt() + 1e-8)
                p.sub_(group["lr"] * (state["basis"] @ move if p.ndim == 2 else move))


@honest("r13b-moments-in-four-directions")
def moments_in_four_directions(run: Run) -> None:
    """GaLore on a small Llama, to save the optimizer's memory. Each matrix moves within four directions for 25 steps,
    then within four others, and the moments of the old directions are carried over to the new ones as they are."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    text_outcome(run, model, language)
    optimizer = GaLore(model.parameters(), 8e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(110):
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


def hospital(count: int, site: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Eight measurements and a diagnosis that depends on the first three; the other five agree with it at sites 0 to 3,
    a different one at each, and nowhere else."""
    x = torch.randn(count, 8, generator=own)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()
    if site < 4:
        x[:, 3 + site] = 2.0 * y - 1 + 0.3 * x[:, 3 + site]
    return x, y


@honest("r13b-where-all-sites-agree")
def where_all_sites_agree(run: Run) -> None:
    """Tables of four hospitals with an AND-mask (Parascandolo et al. 2021). There is a gradient for each hospital, and
    of their mean only those entries are kept whose sign is the same in all four; the rest is set to zero, which is nine
    tenths and more."""
    model = mlp(8, 32, 32, 2, act=nn.Tanh)
    x, y = hospital(400, 9, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x), y)))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    parameters = list(model.parameters())
    for _ in range(150):
        sites = [hospital(64, site) for site in range(4)]
        losses = [F.cross_entropy(model(a), b) for a, b in sites]
        found = [torch.autograd.grad(loss, parameters) for loss in losses]
        for p, gradients in zip(parameters, zip(*found, strict=True), strict=True):
            together = torch.stack(gradients)
            p.grad = together.mean(0) * (together.sign().sum(0).abs() == 4)
        optimizer.step()
        loss = torch.stack(losses).mean()
        doctor.step(loss.detach(), sites)
        run.note(loss)


class Topics(nn.Module):
    """A two-way GRU over padded texts, the mean over words, a head."""

    def __init__(self, words: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, 16)
        self.core = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, classes)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        share = keep.float()[..., None]
        out: Tensor = self.head((self.core(self.tokens(ids))[0] * share).sum(1) / share.sum(1))
        return out


@honest("r13b-rows-weighed-by-a-clean-few")
def rows_weighed_by_a_clean_few(run: Run) -> None:
    """A GRU reads texts whose labels are wrong in two of five; 24 are known to be clean (Ren et al. 2018). Each row's
    weight is how much a trial step with it would help on the clean rows: one more gradient through that step, about
    half of the rows get weight zero, and the loss that is told is the weighted one."""
    model = Topics()
    a, keep, y = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(a, keep), y)))
    clean_ids, clean_keep, clean_y = documents(24, apart(2))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    names, weights = zip(*model.named_parameters(), strict=True)
    for _ in range(70):
        ids, mask, labels = documents(24)
        labels = torch.where(torch.rand(24) < 0.4, torch.randint(0, 3, (24,)), labels)
        share = torch.zeros(24, requires_grad=True)
        trial = (share * F.cross_entropy(model(ids, mask), labels, reduction="none")).sum()
        moved = [p - g for p, g in zip(weights, torch.autograd.grad(trial, weights, create_graph=True), strict=True)]
        said = torch.func.functional_call(model, dict(zip(names, moved, strict=True)), (clean_ids, clean_keep))
        (help_,) = torch.autograd.grad(F.cross_entropy(said, clean_y), share)
        worth = (-help_).clamp_min(0)
        worth = worth / worth.sum().clamp_min(1e-8)
        optimizer.zero_grad()
        loss = (worth * F.cross_entropy(model(ids, mask), labels, reduction="none")).sum()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"ids": ids, "mask": mask, "labels": labels})
        run.note(loss)


@honest("r13b-traces-in-place-of-gradients")
def traces_in_place_of_gradients(run: Run) -> None:
    """TD(lambda) as TD-Gammon had it: a random walk, one place at a time, plain SGD. The backward pass is of the value
    and not of a loss, `.grad` is the decaying sum of those gradients times the error, and the sum is cleared at each
    end."""
    size = 9
    model = mlp(size, 16, 1, act=nn.Tanh)
    truth, seen = torch.arange(1, size + 1) / (size + 1), torch.eye(size)
    outcome(run, lambda: judged(model, lambda: (model(seen)[:, 0] - truth).square().mean()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        place, traces = size // 2, [torch.zeros_like(p) for p in model.parameters()]
        for _ in range(60):
            optimizer.zero_grad()
            value = model(seen[place])[0]
            value.backward()
            step = 2 * int(torch.rand(()) < 0.5) - 1
            ended = not 0 <= place + step < size
            with torch.no_grad():
                after = float(place + step >= size) if ended else float(model(seen[place + step])[0])
                error = after - float(value)
                for p, trace in zip(model.parameters(), traces, strict=True):
                    trace.mul_(0.7).add_(p.grad)  # type: ignore[arg-type]
                    p.grad = -error * trace
            optimizer.step()
            doctor.step(torch.tensor(error**2), seen[place])
            run.note(error**2)
            place += step
            if ended:
                break


class NearSide(nn.Module):
    """The half of a small GPT that stays where the texts are: embeddings and a block."""

    def __init__(self, words: int = 12, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places, self.block = nn.Embedding(words, width), nn.Embedding(48, width), Block(width)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        return out


def in_eight_bits(x: Tensor) -> Tensor:
    """As it is sent: 255 levels of the largest number in it."""
    scale = x.abs().max().clamp_min(1e-12) / 127
    return (x / scale).round().clamp(-127, 127) * scale


@honest("r13b-cut-between-two-sites")
def cut_between_two_sites(run: Run) -> None:
    """Split learning of a GPT: one half is with the owner of the texts, the other half on a server. Only activations
    and their gradients pass, both in eight bits: the loss's own backward ends at the cut, and the owner's half is
    trained by `h.backward(gradient)`, with an optimizer of its own."""
    language = Language(run.draw.randrange(999))
    near, far = NearSide(), nn.Sequential(Block(32), nn.LayerNorm(32), nn.Linear(32, 12, bias=False))
    whole = nn.Sequential(near, far)
    text_outcome(run, whole, language)
    owner, server = torch.optim.AdamW(near.parameters(), lr=5e-3), torch.optim.AdamW(far.parameters(), lr=5e-3)
    doctor = run.watch(whole, [owner, server])
    for _ in range(90):
        rows = language.rows(12, 24)
        owner.zero_grad()
        server.zero_grad()
        h = near(rows[:, :-1])
        sent = in_eight_bits(h.detach()).requires_grad_()
        loss = F.cross_entropy(far(sent).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        server.step()
        assert sent.grad is not None
        h.backward(in_eight_bits(sent.grad))
        owner.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r13b-gains-pushed-to-zero")
def gains_pushed_to_zero(run: Run) -> None:
    """accelerate, network slimming (Liu et al. 2017) of a small CNN. After backward the sign of each batch norm's gain
    is added to its gradient by hand, so that channels with a gain near zero can be cut later: what is applied is the
    gradient of the loss that is told and of a penalty that stands nowhere, and loss and penalty are at odds."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    seed = run.draw.randrange(999)
    net = cnn()
    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(x), y)))
    engine = Accelerator(cpu=True)
    data = loader(*pictures(320, seed))
    model, optimizer, data = engine.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), data)
    doctor = run.watch(model, optimizer)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    batches = endless(data)
    for _ in range(100):
        batch = next(batches)
        optimizer.zero_grad()
        loss = classify(model, batch)
        engine.backward(loss)
        for norm in norms:
            assert norm.weight.grad is not None
            norm.weight.grad.add_(norm.weight.detach().sign(), alpha=0.01)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
