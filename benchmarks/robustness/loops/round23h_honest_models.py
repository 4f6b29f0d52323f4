"""Round 23h, honest and odd: networks whose parts are none of the usual ones."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Decoder,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F

# what the sixteen functions of two bits are as c0 + c1 a + c2 b + c3 ab
GATES = torch.tensor(
    [
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 1, 0, -1],
        [0, 1, 0, 0],
        [0, 0, 1, -1],
        [0, 0, 1, 0],
        [0, 1, 1, -2],
        [0, 1, 1, -1],
        [1, -1, -1, 1],
        [1, -1, -1, 2],
        [1, 0, -1, 0],
        [1, 0, -1, 1],
        [1, -1, 0, 0],
        [1, -1, 0, 1],
        [1, 0, 0, -1],
        [1, 0, 0, 0],
    ],
    dtype=torch.float32,
)


class GateLayer(nn.Module):
    """Gates with two inputs each, wired by chance for ever; which gate it is, is learned."""

    def __init__(self, inputs: int, gates: int) -> None:
        super().__init__()
        self.choice = nn.Parameter(torch.randn(gates, 16))
        self.register_buffer("first", torch.randperm(gates) % inputs)
        self.register_buffer("second", torch.randperm(gates) % inputs)

    def forward(self, x: Tensor) -> Tensor:
        hard = F.one_hot(self.choice.argmax(1), 16).float()
        c = (self.choice.softmax(1) if self.training else hard) @ GATES
        a, b = x[:, self.first], x[:, self.second]
        return c[:, 0] + c[:, 1] * a + c[:, 2] * b + c[:, 3] * a * b


class Circuit(nn.Module):
    """Three layers of gates; a class is how many of its gates are on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(GateLayer(64, 400), GateLayer(400, 400), GateLayer(400, 400))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers((x.flatten(1) > 0.5).float()).view(len(x), 4, 100).sum(2) / 8
        return out


@honest("r23h-sixteen-gates-and-a-choice")
def sixteen_gates_and_a_choice(run: Run) -> None:
    """Plain loop, a circuit of logic gates (difflogic, Petersen et al. 2022). Inputs are bits, what connects what is
    drawn once and is no weight, a unit's only weights choose softly among sixteen functions of two bits, two of them
    constant, and the output is a count. In use each choice is a hard one, and the network is another than the one that
    was trained; the rate is far higher than is usual."""
    seed = run.draw.randrange(999)
    data, check = pictures(400, seed, own=apart(seed)), pictures(300, seed, own=apart(1))
    model = Circuit()
    class_outcome(run, model, check)

    def batch() -> tuple[Tensor, Tensor]:
        some = torch.randint(0, 400, (48,))
        return data[0][some], data[1][some]

    train(run, model, adam(model, 5e-2), batch, classify, 150)


class Chain(nn.Module):
    """A matrix for each pixel, chosen between two by how bright it is; a picture is the product of its matrices."""

    def __init__(self, pixels: int = 64, bond: int = 8, classes: int = 4) -> None:
        super().__init__()
        near_identity = torch.eye(bond) + 0.02 * torch.randn(pixels, 2, bond, bond)
        self.cores = nn.Parameter(near_identity)
        self.label = nn.Parameter(torch.randn(bond, classes, bond) / bond)
        self.left, self.right = nn.Parameter(torch.ones(bond)), nn.Parameter(torch.ones(bond))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1).T[:, :, None, None]
        matrices = x * self.cores[:, :1] + (1 - x) * self.cores[:, 1:]
        half = len(matrices) // 2
        left, right = self.left.expand(x.shape[1], -1), self.right.expand(x.shape[1], -1)
        for matrix in matrices[:half]:
            left = (left[:, None] @ matrix).squeeze(1)
        for matrix in matrices[half:].flip(0):
            right = (matrix @ right[..., None]).squeeze(2)
        return torch.einsum("ra,acb,rb->rc", left, self.label, right)


@honest("r23h-a-product-of-sixty-four-matrices")
def a_product_of_sixty_four_matrices(run: Run) -> None:
    """Lightning, pictures by a matrix product state (Stoudenmire and Schwab 2016; TorchMPS). The network is linear in
    each of its weights, has no activation, no norm and no bias, and is 64 layers deep, one for each pixel; a matrix
    begins as the identity with a little noise, the same for dark and bright, so that at first a picture hardly
    matters."""
    seed = run.draw.randrange(999)
    model = Chain()
    class_outcome(run, model, pictures(300, seed, own=apart(1)))
    data = loader(*pictures(400, seed, own=apart(seed)), size=25)
    fit(run, lit(model, classify, lambda net: adam(net, 3e-3)), data, 120, max_epochs=-1)


class Cells(nn.Module):
    """Cells in a square: each sees itself and slopes of its neighbours, and half of them, by lot, change in a step."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        slope = torch.outer(torch.tensor([1.0, 2, 1]), torch.tensor([-1.0, 0, 1])) / 8
        self_alone = torch.zeros(3, 3)
        self_alone[1, 1] = 1
        self.register_buffer("seen", torch.stack([self_alone, slope, slope.T]).repeat(channels, 1, 1)[:, None])
        self.channels = channels
        self.rule = nn.Sequential(nn.Conv2d(3 * channels, 64, 1), nn.ReLU(), nn.Conv2d(64, channels, 1, bias=False))
        nn.init.zeros_(self.rule[-1].weight)  # type: ignore[arg-type]

    def alive(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1

    def forward(self, x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            before = self.alive(x)
            change = self.rule(F.conv2d(x, self.seen, padding=1, groups=self.channels))  # type: ignore[arg-type]
            x = x + change * (torch.rand(x[:, :1].shape) < 0.5)
            x = x * (before & self.alive(x))
        return x


class Garden:
    """Grows a picture from one cell; what has grown goes back to a pool and is grown on later."""

    def __init__(self, run: Run, model: Cells, target: Tensor) -> None:
        self.run, self.model, self.target = run, model, target
        self.seed = torch.zeros(1, model.channels, *target.shape[1:])
        self.seed[:, 3:, target.shape[1] // 2, target.shape[2] // 2] = 1
        self.pool = self.seed.repeat(48, 1, 1, 1)

    def wrong(self, grown: Tensor) -> Tensor:
        return (grown[:, :4] - self.target).square().mean((1, 2, 3))

    def grow(self, steps: int) -> None:
        optimizer = torch.optim.Adam(self.model.parameters(), lr=4e-3)
        doctor = self.run.watch(self.model, optimizer)
        for _ in range(steps):
            taken = torch.randperm(len(self.pool))[:8]
            begun = self.pool[taken]
            worst = self.wrong(begun).argmax()
            begun[worst] = self.seed[0]
            grown = self.model(begun, int(torch.randint(10, 15, (1,))))
            loss = self.wrong(grown).mean()
            optimizer.zero_grad()
            loss.backward()
            for p in self.model.parameters():
                if p.grad is not None:
                    p.grad /= p.grad.norm() + 1e-8
            optimizer.step()
            doctor.step(loss, begun)
            self.run.note(loss)
            self.pool[taken] = grown.detach()


@honest("r23h-grows-from-one-cell")
def grows_from_one_cell(run: Run) -> None:
    """An own class, a neural cellular automaton (Mordvintsev et al. 2020). There is one target and no other data; the
    inputs are what the network has made before, taken from a pool, the worst of them replaced by a single living cell.
    The rule's last layer is zero at the start, so that nothing happens and all other gradients are zero, the gradient
    of each tensor is divided by its own norm, and random numbers are drawn in evaluation as well."""
    kind = torch.rand(4, generator=apart(run.draw.randrange(999)))
    x, y = torch.meshgrid(torch.arange(9) - 4.0, torch.arange(9) - 4.0, indexing="ij")
    leaf = ((x / (2.2 + kind[0])).square() + (y / (2.2 + kind[1])).square() < 1.2).float()
    target = torch.stack([leaf * kind[2], leaf * (x > 0), leaf * kind[3] * (y > 0), leaf])
    model = Cells()
    garden = Garden(run, model, target)
    outcome(run, lambda: judged(model, lambda: garden.wrong(model(garden.seed.repeat(8, 1, 1, 1), 14)).mean()))
    garden.grow(150)


class StackReader(nn.Module):
    """A recurrent cell with a stack beside it that it pushes to, pops from and leaves alone, by shares."""

    def __init__(self, words: int, hidden: int = 40, deep: int = 10, wide: int = 10) -> None:
        super().__init__()
        self.deep, self.wide = deep, wide
        self.tokens, self.cell = nn.Embedding(words, 16), nn.GRUCell(16 + wide, hidden)
        self.acts, self.new = nn.Linear(hidden, 3), nn.Linear(hidden, wide)
        self.head = nn.Linear(hidden + wide, words)

    def forward(self, ids: Tensor) -> Tensor:
        state = torch.zeros(len(ids), self.cell.hidden_size)
        stack = torch.zeros(len(ids), self.deep, self.wide)
        out = []
        for word in self.tokens(ids).unbind(1):
            state = self.cell(torch.cat([word, stack[:, 0]], 1), state)
            push, pop, stay = self.acts(state).softmax(1)[..., None, None].unbind(1)
            pushed = torch.cat([self.new(state).sigmoid()[:, None], stack[:, :-1]], 1)
            popped = F.pad(stack[:, 1:], (0, 0, 0, 1))
            stack = push * pushed + pop * popped + stay * stack
            out.append(self.head(torch.cat([state, stack[:, 0]], 1)))
        return torch.stack(out, 1)


def mirrored(count: int, own: torch.Generator | None = None, half: int = 5) -> Tensor:
    """Five letters (0 to 7), a turn (8), the same letters from the last to the first."""
    letters = torch.randint(0, 8, (count, half), generator=own)
    return torch.cat([letters, torch.full((count, 1), 8), letters.flip(1)], 1)


@honest("r23h-a-stack-that-is-half-pushed")
def a_stack_that_is_half_pushed(run: Run) -> None:
    """accelerate's loop, a recurrent network with a stack that is pushed and popped by shares (Joulin and Mikolov
    2015), on letters said once more from the last to the first. The first half of each row are letters by lot, which
    nobody can foretell, and it is taught as well, as a language model is: so the loss has a high floor and stays near
    the logarithm of eight for a while."""
    data = mirrored(512, apart(run.draw.randrange(999)))
    check = mirrored(200, apart(1))
    model = StackReader(10)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows = batch[0]
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    outcome(run, lambda: judged(model, lambda: loss(model, (check,))))
    prepared(run, model, adam(model, 1e-2), loader(data, size=32), loss, 10)


class SigmoidAttention(Attention):
    """Each look has a share of its own between zero and one; shares need not add up to one."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(d / self.heads) - math.log(t)
        shares = scores.sigmoid().tril()
        out: Tensor = self.out((shares @ v).transpose(1, 2).reshape(b, t, d))
        return out


class SigmoidGPT(Decoder):
    def __init__(self, words: int) -> None:
        super().__init__(words, layers=2)
        for block in self.blocks:
            block.attention = SigmoidAttention(32)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(input_ids)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}


@honest("r23h-each-look-by-itself")
def each_look_by_itself(run: Run) -> None:
    """transformers' Trainer, a GPT whose attention is a sigmoid (Ramapuram et al. 2024). What a word takes from those
    before it are shares that do not add up to one, next to nothing for the first words of a row, and less the longer
    the rows are, by a bias of minus the logarithm of the length; the mask is a multiplication by zero."""
    language = Language(run.draw.randrange(999))
    model = SigmoidGPT(12)
    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: model(check, check)["loss"]))
    rows = language.rows(1500, 24)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 130, warmup_steps=10).train()


class SpatialGate(nn.Module):
    """One half of the channels times a mixture over places of the other half, by one matrix for all."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Conv1d(length, length, 1)
        nn.init.normal_(self.mix.weight, std=1e-4)
        nn.init.ones_(self.mix.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        kept, mixed = x.chunk(2, -1)
        out: Tensor = kept * self.mix(self.norm(mixed))
        return out


class GatedMLP(nn.Module):
    """An encoder without attention and without places."""

    def __init__(self, words: int, length: int, width: int = 48, layers: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words + 1, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                SpatialGate(2 * width, length),
                nn.Linear(2 * width, width),
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = x + block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def hidden_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


@honest("r23h-places-mixed-by-one-matrix")
def places_mixed_by_one_matrix(run: Run) -> None:
    """Plain loop, hidden words by gMLP (Liu et al. 2021). There is no attention and no encoding of places: one matrix
    of places, the same for all rows and channels, mixes them. It begins at a ten-thousandth with a bias of one, so
    that at first no place knows of another and hidden words, all of them alike, are said alike."""
    language = Language(run.draw.randrange(999), sharp=2.4)
    model = GatedMLP(12, 16)

    def batch(rows: int = 32, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids = language.rows(rows, 16, own)
        asked = torch.rand(ids.shape, generator=own) < 0.15
        return ids.masked_fill(asked, 12), ids.masked_fill(~asked, -100)

    check = batch(300, apart(901))
    outcome(run, lambda: judged(model, lambda: hidden_loss(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01), batch, hidden_loss, 180)


def squashed(x: Tensor) -> Tensor:
    """The same direction, and a length below one."""
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / (square + 1e-8).sqrt()


class Capsules(nn.Module):
    """Sixty-four small vectors foretell four larger ones, and agree on them in three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 16, 2, 2))
        self.foretell = nn.Parameter(0.1 * torch.randn(64, 4, 8, 4))
        self.draw_again = nn.Sequential(mlp(32, 64, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        parts = squashed(self.see(x).view(len(x), 4, 4, 16).transpose(2, 3).reshape(len(x), 64, 4))
        votes = torch.einsum("kcoi,bki->bkco", self.foretell, parts)
        still = votes.detach()
        logits = torch.zeros(votes.shape[:3])
        for _ in range(2):
            whole = squashed((logits.softmax(2)[..., None] * still).sum(1))
            logits = logits + (still * whole[:, None]).sum(3)
        return squashed((logits.softmax(2)[..., None] * votes).sum(1))


def margins(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    wholes = model(x)
    length, right = wholes.norm(dim=2), F.one_hot(y, 4)
    missed = right * (0.9 - length).relu().square() + 0.5 * (1 - right) * (length - 0.1).relu().square()
    drawn = model.draw_again((wholes * right[..., None]).flatten(1))  # type: ignore[operator]
    return missed.sum(1).mean() + 0.03 * (drawn - x.flatten(1)).square().sum(1).mean()


@honest("r23h-vectors-vote-for-their-wholes")
def vectors_vote_for_their_wholes(run: Run) -> None:
    """Lightning, a CNN of capsules (Sabour et al. 2017). A class is said by the length of a vector, below one and not
    a chance; lengths of two classes may both be large. In the forward pass three rounds of agreement run on detached
    votes, the margin stops at 0.9, and a picture is drawn once more from the capsule of the right class, which only
    the label tells."""
    seed = run.draw.randrange(999)
    model = Capsules()
    check = pictures(300, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: (model(check[0]).norm(dim=2).argmax(1) != check[1]).float().mean()))
    data = loader(*pictures(400, seed, own=apart(seed)), size=25)
    fit(run, lit(model, margins, lambda net: adam(net, 3e-3)), data, 120, max_epochs=-1)
