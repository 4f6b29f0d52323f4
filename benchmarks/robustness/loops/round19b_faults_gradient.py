"""Round 19, part b: mistakes in gradients and in arithmetic."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    examples,
    hf_trainer,
    judged,
    mlp,
    number_outcome,
    outcome,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round18_parts import columns
from benchmarks.robustness.loops.round19b_parts import Drug, Hills, Proxies, field, patients, scenes, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r19b-distances-by-products")
def distances_by_products(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a sum of hills around sites, in metres of a national grid. torch.cdist by default takes
    squares and products apart and subtracts them, 10^13 less 10^13 in single precision, and is some kilometres wrong.
    The twin asks for differences first."""
    seed = run.draw.randrange(999)
    mode = "use_mm_for_euclid_dist_if_necessary" if wrong else "donot_use_mm_for_euclid_dist"
    x, y = field(640, seed)
    net = WithLoss(Hills(x[:96].clone(), mode), F.mse_loss)
    number_outcome(run, net.net, field(256, seed, apart(1)), log=True)
    hf_trainer(run, net, examples(x=x, labels=y), 150, learning_rate=2e-2).train()


@slip("r19b-proxies-never-cleared")
def proxies_never_cleared(run: Run, wrong: bool) -> None:
    """Plain loop, pictures as vectors, by distances to a vector for each class, which the loss holds. The network is
    cleared of gradients by net.zero_grad(), which does not know of the loss's: theirs are summed for ever. The twin
    clears by the optimizer, which has both."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 16))
    whole = nn.ModuleDict({"net": net, "proxies": Proxies(16, 16)})
    optimizer = adam(whole, 1e-2)

    def batch(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, words = scenes(count, seed, own)
        return x, 4 * words[:, 0] + words[:, 1] - 4

    def loss(data: tuple[Tensor, Tensor]) -> Tensor:
        value: Tensor = whole["proxies"](net(data[0]), data[1])
        return value

    check = batch(256, apart(1))
    outcome(run, lambda: judged(whole, lambda: loss(check).log()))
    doctor = run.watch(whole, optimizer)
    for _ in range(120):
        data = batch(32)
        if wrong:
            net.zero_grad()
        else:
            optimizer.zero_grad()
        value = loss(data)
        value.backward()
        optimizer.step()
        doctor.step(value, data)
        run.note(value)


@slip("r19b-rates-in-a-new-tensor")
def rates_in_a_new_tensor(run: Run, wrong: bool) -> None:
    """accelerate, a drug in the blood: two rates are to be learned, and a network for the volume. The rates are put
    together by torch.tensor, which makes a constant of them: only the network learns. The twin stacks them."""
    net = Drug(anew=wrong)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(m(batch["patient"], batch["hours"]), batch["found"])

    def fields(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        return dict(zip(("patient", "hours", "found"), patients(count, own), strict=True))

    check = fields(256, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    data = columns(fields(480, apart(run.draw.randrange(999))))
    prepared(run, net, adam(net, 1e-2), data, loss, 4)


@slip("r19b-second-loss-unscaled")
def second_loss_unscaled(run: Run, wrong: bool) -> None:
    """Plain loop in mixed precision, one body that tells a class and a number. The second loss goes backward without
    the scaler: when gradients are unscaled, its are 65,536 times too small. The twin scales both."""
    seed = run.draw.randrange(999)
    body = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
    whole = nn.ModuleDict({"body": body, "kind": nn.Linear(48, 3), "number": nn.Linear(48, 1)})
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    forms = torch.randn(6, 3, generator=apart(seed + 3))
    spread = table(1024, seed, apart(2))[1].std()

    def batch(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x, y = table(count, seed, own)
        return x, (x @ forms).argmax(1), y / spread

    def losses(data: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            state = body(data[0])
            kind, number = whole["kind"](state), whole["number"](state).flatten()
        return F.cross_entropy(kind.float(), data[1]), F.mse_loss(number.float(), data[2])

    check = batch(256, apart(1))
    outcome(run, lambda: judged(whole, lambda: sum(losses(check))))
    doctor = run.watch(whole, optimizer)
    for _ in range(120):
        data = batch(32)
        optimizer.zero_grad()
        first, second = losses(data)
        scaler.scale(first).backward(retain_graph=True)
        (second if wrong else scaler.scale(second)).backward()
        scaler.step(optimizer)
        scaler.update()
        value = first + second
        doctor.step(value, data)
        run.note(value)


@slip("r19b-slope-of-both-together")
def slope_of_both_together(run: Run, wrong: bool) -> None:
    """Plain loop, a network that solves a damped oscillator. autograd.grad of both outputs, with ones, is the slope of
    their sum, a column that is compared with both equations. The twin takes the slope of each output."""
    net = mlp(1, 32, 32, 2, act=nn.Tanh)

    def loss(m: nn.Module, t: Tensor) -> Tensor:
        t = t.requires_grad_()
        state = m(t)
        if wrong:
            (slope,) = torch.autograd.grad(state, t, torch.ones_like(state), create_graph=True)
        else:
            each = [torch.autograd.grad(state[:, k].sum(), t, create_graph=True)[0] for k in range(2)]
            slope = torch.cat(each, 1)
        place, speed = state.unbind(1)
        due = torch.stack([speed, -place - 0.2 * speed], 1)
        start = F.mse_loss(m(torch.zeros(1, 1)), torch.tensor([[1.0, 0.0]]))
        return F.mse_loss(slope, due) + 10 * start

    times = torch.linspace(0, 4, 101)[:, None]
    turn = 0.99**0.5
    truth = (-0.1 * times).exp() * ((turn * times).cos() + 0.1 / turn * (turn * times).sin())
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(times)[:, :1], truth)))
    train(run, net, adam(net, 1e-2), lambda: 4 * torch.rand(64, 1), loss, 150)


@slip("r19b-closure-without-clearing")
def closure_without_clearing(run: Run, wrong: bool) -> None:
    """Plain loop, a regression by L-BFGS. Gradients are cleared before the step, but the closure, which the step calls
    up to five times, does not clear them: each call adds to those before. The twin clears in the closure."""
    seed = run.draw.randrange(999)
    net = mlp(6, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
    number_outcome(run, net, table(256, seed, apart(1)), log=True)
    data = table(512, seed)
    doctor = run.watch(net, optimizer)

    def closure() -> Tensor:
        if not wrong:
            optimizer.zero_grad()
        value = regress(net, data)
        value.backward()
        return value

    for _ in range(60):
        optimizer.zero_grad()
        value = optimizer.step(closure)
        doctor.step(value, data)
        run.note(value)
