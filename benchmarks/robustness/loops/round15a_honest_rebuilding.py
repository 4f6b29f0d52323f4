"""Round 15a, honest and odd: what is rebuilt, and compared otherwise than place by place."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, judged, loader, mlp, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class Organ(nn.Module):
    """A sound to the loudness of eight harmonics of a known pitch, and these played, all from phase zero."""

    def __init__(self) -> None:
        super().__init__()
        self.ear = nn.Sequential(nn.Conv1d(1, 16, 32, 4), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.ReLU())
        self.head = mlp(25, 32, 8)

    def forward(self, x: Tensor, pitch: Tensor) -> Tensor:
        loud = F.softplus(self.head(torch.cat([self.ear(x[:, None]).mean(2), 10 * pitch], 1)))
        angle = pitch[:, None] * torch.arange(1, 9)[:, None] * torch.arange(x.shape[1])
        return (loud[..., None] * angle.sin()).sum(1)


def spectra_apart(a: Tensor, b: Tensor) -> Tensor:
    """Of three resolutions, magnitudes and their logarithms."""
    out = torch.zeros(())
    for size in (32, 64, 128):
        window = torch.hann_window(size)
        p, q = (torch.stft(s, size, size // 4, window=window, return_complex=True).abs() for s in (a, b))
        out = out + (p - q).abs().mean() + 0.3 * ((p + 0.1).log() - (q + 0.1).log()).abs().mean()
    return out


@honest("r15a-sounds-alike-and-looks-unlike")
def sounds_alike_and_looks_unlike(run: Run) -> None:
    """Plain loop, a synthesiser as in DDSP. Output and target are compared by magnitudes of their spectra at three
    resolutions and never as waves: phases are free, and the wave that comes out may be as far from the target as
    silence or farther, though it sounds the same."""
    model = Organ()

    def notes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        pitch = 0.12 + 0.15 * torch.rand(count, 1, generator=own)
        loud = torch.rand(count, 8, 1, generator=own) ** 2
        phase = 2 * math.pi * torch.rand(count, 8, 1, generator=own)
        angle = pitch[:, None] * torch.arange(1, 9)[:, None] * torch.arange(256) + phase
        return (loud * angle.sin()).sum(1), pitch

    check = notes(96, apart(1))
    outcome(run, lambda: judged(model, lambda: spectra_apart(model(*check), check[0])))
    train(run, model, adam(model), lambda: notes(16), lambda m, b: spectra_apart(m(*b), b[0]), 120)


class Folding(nn.Module):
    """A cloud of points to a code, and a grid of 36 points folded into its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.code, self.fold = mlp(3, 32, 48), nn.Linear(48, 12), mlp(14, 48, 48, 3)
        line = torch.linspace(-1, 1, 6)
        self.register_buffer("grid", torch.cartesian_prod(line, line))

    def forward(self, x: Tensor) -> Tensor:
        code = self.code(self.each(x).amax(1))[:, None].expand(-1, 36, -1)
        out: Tensor = self.fold(torch.cat([self.grid.expand(len(x), -1, -1), code], 2))
        return out


@honest("r15a-no-point-has-its-own-target")
def no_point_has_its_own_target(run: Run) -> None:
    """accelerate, FoldingNet on clouds of 24 points. 36 points come out where 24 went in, in no order that means
    anything; each is compared with whichever is nearest, both ways (Chamfer), so that a point's target is another
    one from step to step, and some points of the target have several that aim at them."""
    model = Folding()

    def clouds(count: int, own: torch.Generator | None = None) -> Tensor:
        points = F.normalize(torch.randn(count, 24, 3, generator=own), dim=2)
        points = points * (0.3 + 1.4 * torch.rand(count, 1, 3, generator=own))
        return points + torch.randn(count, 1, 3, generator=own)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        far = torch.cdist(net(batch[0]), batch[0]).square()
        return far.amin(1).mean() + far.amin(2).mean()

    check = (clouds(128, apart(1)),)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    prepared(run, model, adam(model), loader(clouds(960)), loss, 3)
