"""Honest runs on what is learned already: soft prompts, gradual unfreezing, hot distillation, growing, rounding."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import accuracy, quantity, shapes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune


class Patches(nn.Module):
    """Pictures in 3 by 3 patches, two standard encoder layers, the mean of the tokens."""

    def __init__(self, classes: int = 6, width: int = 32) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, 3, 3)
        self.places = nn.Parameter(0.02 * torch.randn(16, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.cut(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            tokens = layer(tokens)
        out: Tensor = self.head(tokens.mean(1))
        return out


def learned(model: nn.Module, steps: int = 50, still: bool = True) -> None:
    """Unwatched: what a run starts from."""
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(steps):
        x, y = shapes(32, classes=6, still=still)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Shifter(nn.Module):
    """Digits and, in front of them, vectors that say by how much each digit is to be shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.digits, self.orders = nn.Embedding(7, 32), nn.Embedding(4, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 7)

    def forward(self, digits: Tensor, order: Tensor) -> Tensor:
        x = self.layer(torch.cat([order, self.digits(digits)], 1))
        out: Tensor = self.head(x[:, -digits.shape[1] :])
        return out


class Prompted(nn.Module):
    def __init__(self, frozen: Shifter) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False).eval()
        self.prompt = nn.Parameter(0.5 * torch.randn(1, 3, 32))

    def train(self, mode: bool = True) -> "Prompted":
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, digits: Tensor) -> Tensor:
        out: Tensor = self.frozen(digits, self.prompt.expand(len(digits), -1, -1))
        return out


@honest("nh-three-soft-tokens")
def soft_tokens(run: Run) -> None:
    """Prompt tuning: three learned vectors in front of a frozen encoder that stays in eval mode, at a rate of 0.05.

    The encoder can shift digits by several amounts and was told which; the prompt has to find out how to tell it. 96
    of 11,303 weights have a gradient, no module in training mode has any but the outermost.
    """
    body = Shifter()
    optimizer = torch.optim.Adam(body.parameters(), lr=6e-3)
    for _ in range(150):
        x, order = torch.randint(0, 7, (32, 5)), torch.randint(0, 4, (32, 1))
        loss = F.cross_entropy(body(x, body.orders(order)).flatten(0, 1), ((x + order) % 7).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model = Prompted(body).train()
    optimizer = torch.optim.Adam([model.prompt], lr=0.05)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        x = torch.randint(0, 7, (24, 5))
        y = (x + 2) % 7
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-unfrozen-from-the-top")
def unfrozen(run: Run) -> None:
    """Gradual unfreezing: the new head first, then a layer more every 25 steps as a new group with a third of the rate.

    The optimizer gets parameters during the run; the lower layers have none of its state at first, and no gradient.
    """
    model = Patches()
    learned(model)
    model.head = nn.Linear(32, 3)
    for part in (model.cut, model.layers):
        part.requires_grad_(False)
    model.places.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=6e-3)
    doctor = run.watch(model, optimizer)
    later: list[nn.Module] = [model.layers[1], model.layers[0], model.cut]
    rate = 6e-3
    for step in range(110):
        if step in (25, 50, 75):
            rate /= 3
            weights = list(later.pop(0).requires_grad_(True).parameters())
            optimizer.add_param_group({"params": weights, "lr": rate})
        x, y = shapes(24, classes=6, noise=0.6, still=True)
        y = y % 3
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-distilled-at-ten")
def distilled(run: Run) -> None:
    """Distillation at a temperature of 10 without any labels: pictures are noise and mixtures which nobody could name.

    The student learns from a frozen teacher's soft answers, times the square of the temperature; the loss is small
    from the start since hot answers are alike. Its accuracy on true pictures rises without having seen one.
    """
    teacher = Patches()
    learned(teacher)
    teacher.eval().requires_grad_(False)
    student = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3), nn.ReLU(), nn.Flatten(),
        Counting(), nn.Linear(24 * 16, 6),
    )  # fmt: skip
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    doctor = run.watch(student, optimizer)
    held = shapes(200, classes=6, still=True)
    with torch.no_grad():
        quantity(run, accuracy(student(held[0]), held[1]))
    for _ in range(120):
        a, b = (shapes(24, classes=6, still=True)[0] for _ in range(2))
        share = torch.rand(24, 1, 1, 1)
        x = share * a + (1 - share) * b.flip(0)
        with torch.no_grad():
            told = (teacher(x) / 10).log_softmax(-1)
        loss = 100 * F.kl_div((student(x) / 10).log_softmax(-1), told, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)
    with torch.no_grad():
        quantity(run, accuracy(student(held[0]), held[1]))


class Steps(nn.Module):
    """A GRU language model with residual blocks after it, of which there may be more later."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(VOCABULARY, 32), nn.GRU(32, 32, batch_first=True)
        self.blocks = nn.ModuleList([self.block()])
        self.head = nn.Linear(32, VOCABULARY)

    @staticmethod
    def block() -> nn.Module:
        block = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        nn.init.zeros_(block[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(block[-1].bias)  # type: ignore[arg-type]
        return block

    def forward(self, ids: Tensor) -> Tensor:
        x = self.rnn(self.embedding(ids))[0]
        for block in self.blocks:
            x = x + block(x)
        out: Tensor = self.head(x)
        return out


@honest("nh-grown-while-running")
def grown(run: Run) -> None:
    """A net that grows: every 30 steps one more block, which starts as the identity, joins the same optimizer.

    A block's last layer is zero at first, so growing changes nothing at that moment, and the block's other layers have
    a zero gradient in their first step.
    """
    tokens = corpus(run.draw.randrange(1000))
    model = Steps()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    doctor = run.watch(model, optimizer)
    for step in range(110):
        if step in (30, 60, 90):
            block = model.block()
            model.blocks.append(block)
            optimizer.add_param_group({"params": list(block.parameters())})
        x, y = crops(tokens, 10, 20)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class Ternary(nn.Linear):
    """Weights rounded to -1, 0 and 1 times their mean size in forward; the gradient goes to the unrounded ones."""

    def forward(self, x: Tensor) -> Tensor:
        size = self.weight.abs().mean().clamp_min(1e-5)
        rounded = (self.weight / size).round().clamp(-1, 1) * size
        return F.linear(x, self.weight + (rounded - self.weight).detach(), self.bias)


class Ranged(nn.Module):
    """Activations rounded to 16 levels; the range is watched for 50 passes, then it is fixed."""

    top: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("top", torch.tensor(0.0))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            if self.passes <= 50:
                self.top.copy_(torch.maximum(0.95 * self.top, x.detach().amax()))
        step = self.top.clamp_min(1e-3) / 15
        rounded = (x / step).round().clamp(0, 15) * step
        inside = x.clamp(max=float(self.top)) if self.passes > 50 else x
        return inside + (rounded - inside).detach()


@honest("nh-three-valued-weights")
def three_valued(run: Run) -> None:
    """Training aware of rounding: weights with three values, activations with sixteen, gradients straight through.

    The unrounded weights move a little at every step while the rounded ones stay, then jump; ranges are buffers set
    in forward that stop moving after 50 passes, counted in Python.
    """
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), Ranged(), Ternary(64, 64), nn.ReLU(), Ranged(), Ternary(64, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    pictures, names = shapes(512, noise=0.15)
    run.preflight(doctor, (pictures[:32], names[:32]), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(150):
        rows = torch.randint(0, 512, (32,))
        x, y = pictures[rows], names[rows]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-pruned-in-stages")
def pruned(run: Run) -> None:
    """Magnitude pruning during fine-tuning: in four stages nine tenths of the weights become zero for good.

    torch's own pruning turns each weight into a product of itself and a mask, recomputed by a hook before forward; the
    loss jumps at each stage and recovers. The optimizer is made after the first mask, as the names change with it.
    """
    model: Any = nn.Sequential(
        nn.Flatten(), nn.Linear(144, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 6)
    )
    learned(model, 60, still=False)
    layers = [(model[i], "weight") for i in (1, 3)]
    for layer, name in layers:
        prune.identity(layer, name)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        if step % 20 == 0 and step < 80:
            method: Any = prune.L1Unstructured
            prune.global_unstructured(layers, pruning_method=method, amount=0.44)
        x, y = shapes(32, classes=6)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
