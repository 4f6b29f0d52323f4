"""Round 27i, honest and odd: models of plants, networks, radio and construction."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import Block, apart, fit, judged, lit, loader, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F


class Wear(nn.Module):
    """After each reading, the scale and the form of a Weibull distribution of what is left."""

    def __init__(self, usual: float) -> None:
        super().__init__()
        self.usual = usual
        self.core, self.head = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, readings: Tensor) -> tuple[Tensor, Tensor]:
        scale, form = self.head(self.core(readings)[0]).unbind(2)
        return self.usual * scale.exp(), 4 * (form - 1.0).sigmoid()


def engines(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Readings (count, 30, 3), steps that are left or were at least left, whether it broke, and where there are any."""
    life = torch.randint(8, 45, (count, 1), generator=own)
    time = torch.arange(30)[None]
    worn = (1 - (life - time) / 20).clamp_min(0)
    readings = torch.stack([worn, worn.square(), torch.zeros_like(worn)], 2)
    readings = readings + 0.2 * torch.randn(count, 30, 3, generator=own)
    seen = torch.minimum(life, torch.randint(10, 31, (count, 1), generator=own))
    there = time < seen
    broke = (seen == life).expand(-1, 30)
    return readings * there[..., None], (seen - 1 - time).clamp_min(0).float(), broke.float(), there


def weibull(net: Any, batch: Any) -> Tensor:
    readings, left, broke, there = batch
    scale, form = net(readings)
    now, then = ((left + 1e-6) / scale) ** form, ((left + 1) / scale) ** form
    likely = broke * torch.expm1(then - now).clamp_min(1e-7).log() - then
    return -likely[there].mean()


@honest("r27i-how-long-until-it-breaks-or-at-least")
def how_long_until_it_breaks_or_at_least(run: Run) -> None:
    """Lightning, wear of engines by a recurrent network (WTTE-RNN, Martinsson 2016). The label counts down from step
    to step to nought, and for engines that still ran at the end it counts down to a nought at which nothing happened;
    those rows push the forecast up alone. What is said is a scale that begins at the usual life and a form that is
    held below four, and the loss is the logarithm of a difference of two exponentials."""
    own = apart(run.draw.randrange(999))
    rows, new = engines(300, own), engines(200, own)
    model = Wear(float(rows[1][rows[3]].mean()))
    outcome(run, lambda: judged(model, lambda: weibull(model, new)))
    fit(run, lit(model, weibull, lambda net: torch.optim.Adam(net.parameters(), lr=1e-2)), loader(*rows, size=32), 120)


def fields(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Scenes of 32 by 32 in four bands, of patches of five kinds of ground, and the same in one broad band."""
    ground = 0.2 + 0.6 * torch.rand(5, 4, generator=apart(seed))
    rough = torch.randn(count, 5, 8, 8, generator=own)
    kinds = F.interpolate(rough, size=32, mode="bicubic") + 0.3 * torch.randn(count, 5, 32, 32, generator=own)
    scenes = ground[kinds.argmax(1)].permute(0, 3, 1, 2)
    broad = (scenes * torch.tensor([0.1, 0.3, 0.4, 0.2])[:, None, None]).sum(1, keepdim=True)
    return scenes, broad + 0.01 * torch.randn(broad.shape, generator=own)


class Sharpened(nn.Module):
    """Coarse bands made as fine as the broad one, and three convolutions that correct them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(5, 24, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(24, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 4, 3, padding=1),
        )

    def forward(self, coarse: Tensor, broad: Tensor) -> Tensor:
        raised = F.interpolate(coarse, size=broad.shape[-2:], mode="bilinear")
        out: Tensor = raised + self.body(torch.cat([raised, broad], 1))
        return out


@honest("r27i-taught-at-half-the-sharpness")
def taught_at_half_the_sharpness(run: Run) -> None:
    """accelerate, pictures from satellites made sharper (PNN, Masi et al. 2016, after Wald, Ranchin and Mangolini
    1997). Sharp pictures in colour do not exist: both inputs are made coarser once more, the input as it came is the
    label, and in use the network sees pictures twice as large and twice as fine as any that it was taught."""
    seed = run.draw.randrange(999)
    scenes, broad = fields(64, seed, apart(seed + 1))
    coarse = F.avg_pool2d(scenes, 2)
    new, new_broad = fields(24, seed, apart(seed + 2))
    model = Sharpened()
    outcome(run, lambda: judged(model, lambda: (model(F.avg_pool2d(new, 2), new_broad) - new).abs().mean()))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        coarser, grey, truth = batch
        return (model(coarser, grey) - truth).abs().mean()

    data = loader(F.avg_pool2d(coarse, 2), F.avg_pool2d(broad, 2), coarse, size=8)
    prepared(run, model, adam(model, 2e-3), data, loss, 20)


def parity_checks() -> tuple[Tensor, Tensor]:
    """The checks (8, 15) and the words (7, 15) of the BCH code of 15 bits, of which seven are free."""
    checks, words = torch.zeros(8, 15), torch.zeros(7, 15)
    for i in range(8):
        checks[i, i : i + 8] = torch.tensor([1.0, 1, 0, 1, 0, 0, 0, 1])
    for i in range(7):
        words[i, i : i + 9] = torch.tensor([1.0, 0, 0, 0, 1, 0, 1, 1, 1])
    return checks, words


class WeighedBeliefs(nn.Module):
    """Five rounds of belief propagation; each message has a weight that begins at one."""

    def __init__(self, rounds: int = 5) -> None:
        super().__init__()
        checks, _ = parity_checks()
        check, bit = checks.nonzero(as_tuple=True)
        apart_from = ~torch.eye(len(bit), dtype=torch.bool)
        self.register_buffer("bit", bit)
        self.register_buffer("to_check", ((bit[:, None] == bit) & apart_from).float())
        self.register_buffer("to_bit", (check[:, None] == check) & apart_from)
        self.register_buffer("ends", F.one_hot(bit, 15).T.float())
        self.own = nn.Parameter(torch.ones(rounds, len(bit)))
        self.passed = nn.Parameter(torch.ones(rounds, len(bit), len(bit)))
        self.told = nn.Parameter(torch.ones(rounds, 15, len(bit)))

    def forward(self, heard: Tensor) -> list[Tensor]:
        """After each round how much surer nought is than one, (rows, 15)."""
        back = heard.new_zeros(len(heard), len(self.bit))
        out = []
        for own, passed, told in zip(self.own, self.passed, self.told, strict=True):
            there = (0.5 * (own * heard[:, self.bit] + back @ (passed * self.to_check).T)).tanh()
            product = torch.where(self.to_bit, there[:, None], 1.0).prod(2)
            back = 2 * product.clamp(-0.999, 0.999).atanh()
            out.append(heard + back @ (told * self.ends).T)
        return out


def heard_over(words: Tensor, decibels: Tensor, own: torch.Generator | None = None) -> Tensor:
    """Log ratios of what arrives when words are sent through noise."""
    variance = 1 / (2 * (7 / 15) * 10 ** (decibels[:, None] / 10))
    sent = 1 - 2 * words
    return 2 * (sent + variance.sqrt() * torch.randn(words.shape, generator=own)) / variance


class Receiver:
    """Trains a decoder on the word of noughts, at all strengths of noise at once."""

    def __init__(self, run: Run, model: WeighedBeliefs) -> None:
        self.run, self.model = run, model
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
        self.doctor = run.watch(model, self.optimizer)

    def step(self) -> None:
        word = torch.zeros(120, 15)
        heard = heard_over(word, torch.arange(1.0, 7.0).repeat_interleave(20))
        loss = torch.stack([F.binary_cross_entropy_with_logits(-r, word) for r in self.model(heard)]).mean()
        update(self.run, self.doctor, self.optimizer, loss, (heard, word))


@honest("r27i-only-the-word-of-noughts-is-sent")
def only_the_word_of_noughts_is_sent(run: Run) -> None:
    """Own class, errors of a radio link corrected by weighed belief propagation (Nachmani, Be'ery and Burshtein 2016).
    Every label is nought in every batch: the decoder's form treats all words alike, so that one is enough. All weights
    begin at one and not at random, most of the matrices are masked for ever, and each round of messages is told the
    same label; in use any word is sent."""
    model, (_, words) = WeighedBeliefs(), parity_checks()
    own = apart(run.draw.randrange(999))
    sent = torch.randint(0, 2, (2000, 7), generator=own).float() @ words % 2
    heard = heard_over(sent, torch.full((2000,), 3.0), own)
    outcome(run, lambda: judged(model, lambda: F.binary_cross_entropy_with_logits(-model(heard)[-1], sent)))
    receiver = Receiver(run, model)
    for _ in range(150):
        receiver.step()


class Dispatch(nn.Module):
    """Says what eight of fourteen plants give; what the others must give is solved for, and limits are approached by
    a few steps."""

    def __init__(self, own: torch.Generator) -> None:
        super().__init__()
        balance, limits = 0.3 * torch.randn(6, 14, generator=own), 0.4 * torch.randn(10, 14, generator=own)
        balance[:, 8:] = torch.eye(6) + 0.3 * balance[:, 8:]
        self.register_buffer("balance", balance)
        self.register_buffer("limits", limits)
        self.register_buffer("most", (limits @ torch.linalg.pinv(balance)).abs().sum(1))
        self.register_buffer("price", 0.5 + torch.rand(14, generator=own))
        self.register_buffer("swing", torch.rand(14, generator=own))
        self.register_buffer("solved", torch.linalg.inv(balance[:, 8:]))
        self.net = nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 8))

    def completed(self, load: Tensor, free: Tensor) -> Tensor:
        return torch.cat([free, (load - free @ self.balance[:, :8].T) @ self.solved.T], 1)

    def forward(self, load: Tensor) -> Tensor:
        free = self.net(load)
        along = self.limits[:, :8] - self.limits[:, 8:] @ self.solved @ self.balance[:, :8]
        for _ in range(5):
            over = (self.completed(load, free) @ self.limits.T - self.most).relu()
            free = free - 0.02 * 2 * over @ along
        return self.completed(load, free)

    def cost(self, load: Tensor) -> Tensor:
        given = self(load)
        over = (given @ self.limits.T - self.most).relu().square().sum(1)
        return (0.5 * (self.price * given.square()).sum(1) + (self.swing * given.sin()).sum(1) + 10 * over).mean()


@honest("r27i-what-the-others-must-give-is-solved-for")
def what_the_others_must_give_is_solved_for(run: Run) -> None:
    """Plain loop, plants of a power grid set by a network (DC3, Donti, Rolnick and Kolter 2021). There are no labels:
    a batch is loads alone, and the loss is what meeting them costs, with no known floor and below zero where it can.
    More than half of the answer comes from a matrix that is inverted once and never learned, and a second descent, on
    the broken limits, runs inside the network, in training and in use."""
    own = apart(run.draw.randrange(999))
    model = Dispatch(own)
    new = 2 * torch.rand(256, 6, generator=own) - 1
    outcome(run, lambda: judged(model, lambda: model.cost(new)))
    train(run, model, adam(model, 3e-3), lambda: 2 * torch.rand(64, 6) - 1, lambda m, load: m.cost(load), 200)  # type: ignore[operator]


END = 16


def solids(count: int, own: torch.Generator) -> Tensor:
    """(count, 25) the corners of boxes, wedges and pyramids, each as height, depth and width of 16 values, the lowest
    first; an end and nothing, -100, behind it."""
    rows = torch.full((count, 25), -100)
    sizes = torch.randint(0, 9, (count, 3), generator=own)
    for row, low, more, kind in zip(
        rows, sizes, torch.randint(3, 8, (count, 3), generator=own), range(count), strict=True
    ):
        high = low + more
        floor = [(int(low[0]), d, w) for d in (int(low[1]), int(high[1])) for w in (int(low[2]), int(high[2]))]
        if kind % 3 == 0:
            top = [(int(high[0]), d, w) for _, d, w in floor]
        elif kind % 3 == 1:
            top = [(int(high[0]), d, int(low[2])) for d in (int(low[1]), int(high[1]))]
        else:
            top = [(int(high[0]), int(low[1] + high[1]) // 2, int(low[2] + high[2]) // 2)]
        flat = [value for corner in sorted(floor + top) for value in corner]
        row[: len(flat) + 1] = torch.tensor([*flat, END])
    return rows


class Corners(nn.Module):
    """A small GPT of corners: a value, which of the three axes it is, and the number of its corner."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.axis, self.corner = nn.Embedding(18, 48), nn.Embedding(3, 48), nn.Embedding(9, 48)
        self.blocks = nn.ModuleList(Block(48, 4) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 17)

    def forward(self, rows: Tensor) -> Tensor:
        shown = F.pad(rows[:, :-1].clamp_min(0), (1, 0), value=17)
        place = torch.arange(rows.shape[1])
        x = self.value(shown) + self.axis(place % 3) + self.corner(place // 3)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def corner_loss(model: nn.Module, batch: Any) -> Tensor:
    rows = batch[0]
    return F.cross_entropy(model(rows).flatten(0, 1), rows.flatten())


@honest("r27i-corners-from-the-lowest-up")
def corners_from_the_lowest_up(run: Run) -> None:
    """accelerate, solids for construction written by a small GPT (PolyGen, Nash et al. 2020). A corner is three words,
    and a place is told by two tables, by axis and by corner, neither of which knows its number in the row. Corners
    have no order of their own but are sorted by height, so that most of a row follows from its beginning and the loss
    stays far from even over its places; shapes end early, and nought is a height and not padding."""
    own = apart(run.draw.randrange(999))
    rows, new = solids(480, own), solids(192, own)
    model = Corners()
    outcome(run, lambda: judged(model, lambda: corner_loss(model, (new,))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    prepared(run, model, optimizer, loader(rows, size=32), corner_loss, 10)
