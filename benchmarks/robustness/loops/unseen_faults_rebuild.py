"""The model's own code where something is reconstructed: a U-net, autoencoders."""

from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.unseen_faults_common import Lit, fit, held_out, outcome
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A U-net of one level."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 12, 3, 1, 1), nn.Conv2d(12, 24, 3, 4, 1)
        self.deep, self.up = nn.Conv2d(24, 24, 3, 1, 1), nn.ConvTranspose2d(24, 12, 4, 4)
        self.last, self.own = nn.Conv2d(24, 1, 3, 1, 1), own

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        up = F.relu(self.up(F.relu(self.deep(F.relu(self.middle(skip))))))
        out: Tensor = self.last(torch.cat([up, up if self.own else skip], 1))
        return out


@fault(
    "skip-from-itself",
    "code",
    (
        r"skip|concat|encoder|u-?net|shortcut|high.?resol|detail|duplicat",
        r"itself|same|twice|up|missing|not used|unused|without|lost|decoder|wrong",
    ),
)
def skip_from_itself(run: Run, slip: bool) -> None:
    """accelerate, a U-net that marks the pixels of thin bars. What is concatenated with the upsampled features is the
    upsampled features again, not the encoder's at that size; the shapes agree."""

    def pictures(rows: int) -> tuple[Tensor, Tensor]:
        there = (torch.rand(rows, 1, 16, 16) < 0.08).float()
        there[..., 1:, :] = torch.maximum(there[..., 1:, :], there[..., :-1, :])
        return there + 0.3 * torch.randn_like(there), there

    accelerator = Accelerator(cpu=True)
    net = Net(slip)
    loader = DataLoader(TensorDataset(*pictures(1600)), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=4e-3), loader)
    fresh = [pictures(128)]

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])

    outcome(run, lambda: held_out(net, fresh, loss_of))
    doctor = run.watch(model, optimizer)
    for batch in loader:
        loss = loss_of(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, batch)
        optimizer.zero_grad()
        run.note(loss)


class Codes(nn.Module):
    """An autoencoder through a table of 16 codes."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.through, self.book = through, nn.Parameter(torch.randn(16, 4))
        self.encoder = nn.Sequential(nn.Linear(18, 32), nn.GELU(), nn.Linear(32, 4), nn.LayerNorm(4))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        code = self.book[torch.cdist(z.detach(), self.book.detach()).argmin(1)]
        used = z + (code - z).detach() if self.through else code
        match = (code - z.detach()).square().mean() + 0.25 * (z - code.detach()).square().mean()
        return self.decoder(used), match


@fault(
    "no-straight-through",
    "code",
    (r"straight|quanti[sz]|code|vq|encoder", r"gradient|detach|pass|through|learn|reach|encoder"),
)
def no_straight_through(run: Run, slip: bool) -> None:
    """Lightning, a vector-quantised denoising autoencoder. The decoder is given the code itself, without the
    straight-through estimator, so that the encoder gets no gradient from the reconstruction, only from the
    commitment."""
    bits = (torch.arange(8)[:, None] >> torch.arange(3)) % 2
    centres = (2.0 * bits - 1).repeat(1, 2)

    def points(rows: int) -> tuple[Tensor, Tensor]:
        signal = centres[torch.randint(0, 8, (rows,))]
        return torch.cat([signal + 0.1 * torch.randn_like(signal), torch.randn(rows, 12)], 1), signal

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        out, match = model(batch[0])
        return F.mse_loss(out, batch[1]) + match

    net = Codes(not slip)
    fresh = [points(400)]
    outcome(run, lambda: held_out(net, fresh, lambda m, b: F.mse_loss(m(b[0])[0], b[1])))
    loader = DataLoader(TensorDataset(*points(3200)), batch_size=32, shuffle=True)
    fit(run, Lit(net, loss_of), loader, 2)


class Noisy(nn.Module):
    """A variational autoencoder; the encoder gives a mean and a logarithm of a variance."""

    def __init__(self, halved: bool) -> None:
        super().__init__()
        self.halved = halved
        self.encoder = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 48), nn.GELU(), nn.Linear(48, 12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        deviation = (log_variance / 2).exp() if self.halved else log_variance.exp()
        divergence = 0.5 * (log_variance.exp() + mean.square() - 1 - log_variance).sum(-1).mean()
        return self.decoder(mean + deviation * torch.randn_like(mean)), divergence


@fault(
    "variance-as-deviation",
    "code",
    (
        r"varianc|deviation|std|log_?var|noise|reparam|sampl",
        r"half|0\.5|square|root|twice|kl|diverg|inconsisten|exp|mismatch|instead",
    ),
)
def variance_as_deviation(run: Run, slip: bool) -> None:
    """Lightning, a variational autoencoder. The noise is multiplied by exp(log variance), the variance, where the
    deviation exp(log variance / 2) belongs; the divergence treats it as a variance. The measure is the bound computed
    rightly."""
    mixing = torch.randn(3, 12)

    def points(rows: int) -> tuple[Tensor]:
        return ((torch.randn(rows, 3) @ mixing).tanh() + 0.1 * torch.randn(rows, 12),)

    def bound(model: nn.Module, batch: Any) -> Tensor:
        out, divergence = model(batch[0])
        return 5 * (out - batch[0]).square().sum(-1).mean() + divergence

    net = Noisy(not slip)

    def right_bound() -> float:
        net.halved = True
        return held_out(net, fresh, bound)

    fresh = [points(2000)]
    outcome(run, right_bound)
    loader = DataLoader(TensorDataset(*points(3200)), batch_size=32, shuffle=True)
    fit(run, Lit(net, bound), loader, 2)
