"""Round 25c, mistakes on the way back: own backward functions, and what is done with a gradient when."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, examples, hf_trainer, judged, outcome, train
from benchmarks.robustness.loops.round6_tools import WithLoss
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round8b_parts import steps
from benchmarks.robustness.loops.round25c_parts import Echo, Gauge, slip
from torch import Tensor, nn
from torch.nn import functional as F


class Product(torch.autograd.Function):
    """A row times a square matrix, as in nn.Linear."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, turned: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.turned = turned
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return grad @ (weight.T if ctx.turned else weight), grad.T @ x, None


class Step(nn.Module):
    """From state to state."""

    def __init__(self, width: int, turned: bool) -> None:
        super().__init__()
        self.weight, self.turned = nn.Parameter(torch.empty(width, width)), turned
        nn.init.orthogonal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Product.apply(x, self.weight, self.turned)
        return out


class Softplus(torch.autograd.Function):
    """A softplus that keeps what it was given, and finds its slope from that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.softplus(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * x.sigmoid()


class SoftplusWithSlope(torch.autograd.Function):
    """A softplus that keeps its slope."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.sigmoid())
        return F.softplus(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (slope,) = ctx.saved_tensors
        return grad * slope


class Energy(nn.Module):
    """The energy of a place in four dimensions, by three layers and an activation of our own."""

    def __init__(self, act: Any, width: int = 64) -> None:
        super().__init__()
        self.act = act
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.act.apply(layer(x))
        out: Tensor = self.head(x).squeeze(1)
        return out


@slip("r25c-the-same-matrix-on-the-way-back")
def the_same_matrix_on_the_way_back(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a plain recurrent network that says at each place which word came three places before. The
    step from state to state has a backward function of its own, which multiplies by the transposed matrix like the way
    there, and not by the matrix; both are square. The twin multiplies by the matrix. Judged by the cross-entropy on
    other rows."""
    net = WithLoss(
        Echo(6, Step(32, wrong)), lambda found, labels: F.cross_entropy(found[:, 3:].flatten(0, 1), labels.flatten())
    )
    check = torch.randint(0, 6, (256, 14), generator=apart(1))
    outcome(run, lambda: judged(net, lambda: net(check, check[:, :-3])["loss"]))
    ids = torch.randint(0, 6, (1600, 14))
    settings: dict[str, Any] = {"per_device_train_batch_size": 32, "max_grad_norm": 1.0}
    hf_trainer(run, net, examples(x=ids, labels=ids[:, :-3]), 150, **settings).train()


@slip("r25c-slope-saved-as-a-number")
def slope_saved_as_a_number(run: Run, wrong: bool) -> None:
    """Plain loop, a network for the energy of a place that learns from forces, which are the slope of the energy. Its
    softplus has a backward function of its own that keeps the slope from the way there: forces are right, but in their
    derivative the slope counts as a constant. The twin keeps the input and finds the slope from it. Judged by the error
    of forces elsewhere, as a share of their variance."""
    own = apart(run.draw.randrange(999))
    waves, phase = 1.5 * F.normalize(torch.randn(4, 5, generator=own), dim=0), 6.28 * torch.rand(5, generator=own)
    net = Energy(SoftplusWithSlope if wrong else Softplus)

    def measured(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Places and forces of a sum of waves in a bowl."""
        x = torch.randn(count, 4, generator=own)
        return x, (x @ waves + phase).sin() @ waves.T - x

    def force(m: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        with torch.enable_grad():
            return -torch.autograd.grad(m(x).sum(), x, create_graph=True)[0]

    x, true = measured(512, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(force(net, x), true) / true.var()))
    train(run, net, adam(net, 5e-3), lambda: measured(64), lambda m, b: F.mse_loss(force(m, b[0]), b[1]), 150)


@slip("r25c-clipped-once-it-was-used")
def clipped_once_it_was_used(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM that says the next reading of a gauge, which is rarely pushed very hard, SGD with momentum.
    Gradients are clipped to a small norm after the optimizer's step and cleared before the next pass: the clipping has
    no effect. The twin clips before the step. Judged by the mean absolute error on other series."""
    net = Gauge()

    def levels(count: int, own: torch.Generator | None = None) -> Tensor:
        """(count, 17) readings, each seven tenths of the one before and a push, which is rarely very strong."""
        push = torch.randn(count, 17, generator=own)
        push = push * torch.where(torch.rand(count, 17, generator=own) < 0.03, 12.0, 0.5)
        rows = [push[:, 0]]
        for t in range(1, 17):
            rows.append(0.7 * rows[-1] + push[:, t])
        return torch.stack(rows, 1)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        return F.mse_loss(m(rows[:, :-1]), rows[:, 1:])

    check = levels(512, apart(1))
    outcome(run, lambda: judged(net, lambda: F.l1_loss(net(check[:, :-1]), check[:, 1:])))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 0.2)

    told: dict[str, Any] = {"after": clip} if wrong else {"between": clip}
    steps(run, net, optimizer, lambda: levels(16), loss, 120, **told)
