"""Honest generative runs over discrete things: a codebook of averages, tokens erased and restored, drawn bits."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import VOCABULARY, corpus
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import shapes
from torch import Tensor, nn
from torch.nn import functional as F


class Codebook(nn.Module):
    """The nearest of 24 codes; the codes are running means of what chose them, not parameters."""

    codes: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(size, width))
        self.register_buffer("counts", torch.ones(size))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.detach().reshape(-1, x.shape[-1])
        chosen = torch.cdist(flat, self.codes).argmin(1)
        if self.training:
            used = F.one_hot(chosen, len(self.codes)).float()
            self.counts.mul_(0.9).add_(used.sum(0), alpha=0.1)
            self.sums.mul_(0.9).add_(used.T @ flat, alpha=0.1)
            self.codes.copy_(self.sums / self.counts.clamp_min(1e-3)[:, None])
            idle = self.counts < 0.05
            if bool(idle.any()):  # codes nobody chooses start again from the batch
                again = flat[torch.randint(0, len(flat), (int(idle.sum()),))]
                self.codes[idle], self.sums[idle], self.counts[idle] = again, again, 1.0
        near = F.embedding(chosen, self.codes).view_as(x)
        return x + (near - x).detach(), F.mse_loss(x, near)


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, 3), nn.GELU(), nn.Conv2d(16, 8, 1))
        self.codebook = Codebook(24, 8)
        self.up = nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU(), nn.ConvTranspose2d(16, 1, 3, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes, distance = self.codebook(self.down(x).permute(0, 2, 3, 1))
        return self.up(codes.permute(0, 3, 1, 2)), distance


@honest("nh-codebook-by-averages")
def codebook(run: Run) -> None:
    """A VQ-VAE: the gradient jumps over the rounding (straight through), the codes are buffers moved in forward.

    Codes learn by running means, as in the paper's appendix, so no optimizer has them; unused ones are replaced.
    """
    model = Quantised()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    run.preflight(doctor, shapes(24, noise=0.05)[0], lambda m, b: F.mse_loss(m(b)[0], b))
    for _ in range(150):
        x, _ = shapes(24, noise=0.05)
        rebuilt, distance = model(x)
        loss = F.mse_loss(rebuilt, x) + 0.25 * distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)


class Restorer(nn.Module):
    """A bidirectional convolution-and-GRU model of erased characters."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary + 1, 32)
        self.counting = Counting()
        self.near = nn.Conv1d(32, 32, 5, padding=2)
        self.far = nn.GRU(32, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.counting(self.embedding(ids))
        x = x + F.silu(self.near(x.transpose(1, 2)).transpose(1, 2))
        out: Tensor = self.head(self.far(x)[0])
        return out


@honest("nh-erased-tokens-weighted")
def erased(run: Run) -> None:
    """Absorbing-state diffusion on text: a share drawn for each row is erased, and restored; weight one over the share.

    The weight makes the loss a bound on the likelihood, and makes it jump between batches; where next to nothing is
    erased the row weighs a lot. All positions see all others, which is what denoising is.
    """
    tokens = corpus(run.draw.randrange(1000))
    model = Restorer(VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(130):
        starts = torch.randint(0, len(tokens) - 24, (12,)).tolist()
        clean = torch.stack([tokens[s : s + 24] for s in starts])
        share = (torch.rand(12, 1) * 0.95 + 0.05).expand_as(clean)
        gone = torch.rand(clean.shape) < share
        dirty = clean.masked_fill(gone, VOCABULARY)
        each = F.cross_entropy(model(dirty).transpose(1, 2), clean, reduction="none")
        loss = (each * gone / share).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (dirty, clean))
        run.note(loss)


class RoundedPicture(torch.autograd.Function):
    """Zeros and ones drawn with the given probabilities; backward as if they were the probabilities."""

    @staticmethod
    def forward(ctx: Any, probability: Tensor) -> Tensor:
        return torch.bernoulli(probability)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Binary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(40, 144))
        self.bits, self.pixels = nn.Parameter(torch.zeros(40)), nn.Parameter(torch.zeros(144))

    def forward(self, x: Tensor) -> Tensor:
        bits: Tensor = RoundedPicture.apply(torch.sigmoid(F.linear(x.flatten(1) - 0.2, self.weight, self.bits)))
        return F.linear(bits, self.weight.T, self.pixels)


@honest("nh-one-matrix-both-ways")
def both_ways(run: Run) -> None:
    """A binary autoencoder with one matrix read in both directions and random bits between, passed straight through.

    Encoder and decoder share the matrix, transposed, as in a Boltzmann machine; the gradient of the drawn bits is
    that of their probabilities, a known estimate. Two passes over the same batch differ, as they should.
    """
    model = Binary()
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        x = (shapes(32, noise=0.0)[0] > 0.5).float()
        loss = F.binary_cross_entropy_with_logits(model(x), x.flatten(1), reduction="sum") / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)
