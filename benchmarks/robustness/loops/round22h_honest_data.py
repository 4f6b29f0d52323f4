"""Round 22h, honest and odd: rows that were made, cut, sized or packed in unusual ways."""

import itertools
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
    table,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class Survey:
    """Answers given through a coin, and what is learned from them: the coin is known, the answers' truth is not."""

    def __init__(self, model: nn.Module, x: Tensor, truth: Tensor, classes: int, epsilon: float) -> None:
        kept = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
        self.coin = torch.full((classes, classes), (1 - kept) / (classes - 1)).fill_diagonal_(kept)
        self.model, self.x, self.said = model, x, torch.multinomial(self.coin[truth], 1).squeeze(1)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)

    def loss(self, rows: Tensor) -> Tensor:
        would_say = self.model(self.x[rows]).softmax(1) @ self.coin
        return F.nll_loss(would_say.log(), self.said[rows])

    def run(self, run: Run, steps: int) -> None:
        doctor = run.watch(self.model, self.optimizer)
        for _ in range(steps):
            rows = torch.randint(0, len(self.x), (128,))
            value = self.loss(rows)
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()
            doctor.step(value, (self.x[rows], self.said[rows]))
            run.note(value)


def quarters(seed: int, count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of a table and in which of four ranges their number is."""
    x, y = table(count, seed, own)
    bounds = table(4000, seed, apart(3))[1].quantile(torch.tensor([0.25, 0.5, 0.75]))
    return x, torch.bucketize(y, bounds)


@honest("r22h-labels-flipped-by-a-coin")
def labels_flipped_by_a_coin(run: Run) -> None:
    """A class of the user's own, a table with private labels (randomised response, Warner 1965; label differential
    privacy, Ghazi et al. 2021; forward correction, Patrini et al. 2017). Two labels in five were replaced by chance,
    on purpose and once for all, before anybody saw them. The network's chances are multiplied by the coin's matrix
    before the logarithm, so that the loss stands far above nought for ever and falls by little."""
    seed = run.draw.randrange(999)
    model = mlp(6, 48, 48, 4)
    class_outcome(run, model, quarters(seed, 512, apart(1)))
    Survey(model, *quarters(seed, 3000, apart(2)), classes=4, epsilon=1.5).run(run, 180)


class Resized:
    """Puts a batch together and enlarges all of it to one of three sizes, another one every ten batches."""

    def __init__(self) -> None:
        self.batches, self.side = 0, 8

    def __call__(self, rows: list[Any]) -> tuple[Tensor, Tensor]:
        if self.batches % 10 == 0:
            self.side = int(torch.randint(2, 5, ())) * 4
        self.batches += 1
        x = torch.stack([row[0] for row in rows])
        return F.interpolate(x, size=self.side, mode="bilinear"), torch.stack([row[1] for row in rows])


@honest("r22h-every-ten-batches-another-size")
def every_ten_batches_another_size(run: Run) -> None:
    """accelerate, a CNN with a pooling to a fixed grid, multi-scale training as for detectors (YOLO9000, Redmon and
    Farhadi 2017; spatial pyramid pooling, He et al. 2014). The batches of one loader have pictures of 8, of 12 or of
    16 pixels a side, drawn anew every ten batches, so that shapes change within an epoch and the loss jumps."""
    seed = run.draw.randrange(999)
    body = [nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 4))
    x, y = pictures(256, seed, own=apart(1))
    class_outcome(run, model, (F.interpolate(x, size=12, mode="bilinear"), y))
    data = loader(*pictures(640, seed, own=apart(2)), size=32, collate_fn=Resized(), drop_last=True)
    prepared(run, model, adam(model, 3e-3), data, classify, 6)


def striped(count: int, own: torch.Generator | None = None) -> list[tuple[Tensor, int]]:
    """Pictures of 2 to 5 by 2 to 5 patches with stripes in one of four directions, in noise."""
    out = []
    for _ in range(count):
        high, wide = (4 * int(v) for v in torch.randint(2, 6, (2,), generator=own))
        kind, phase = int(torch.randint(0, 4, (), generator=own)), 6.28 * float(torch.rand((), generator=own))
        along = math.pi * kind / 4
        where = math.cos(along) * torch.arange(high)[:, None] + math.sin(along) * torch.arange(wide)
        out.append(((1.6 * where + phase).sin() + 0.7 * torch.randn(high, wide, generator=own), kind))
    return out


def packed(shown: list[tuple[Tensor, int]], length: int = 48) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of patches, each patch's place (line, column), the number of its picture (-1: padding), all labels."""
    rows: list[list[tuple[Tensor, int, int, int]]] = [[]]
    for number, (picture, _) in enumerate(shown):
        cut = picture.unfold(0, 4, 4).unfold(1, 4, 4)
        patches = [
            (cut[i, j].flatten(), i, j, number) for i, j in itertools.product(range(cut.shape[0]), range(cut.shape[1]))
        ]
        if len(rows[-1]) + len(patches) > length:
            rows.append([])
        rows[-1] += patches
    x, places = torch.zeros(len(rows), length, 16), torch.zeros(len(rows), length, 2, dtype=torch.long)
    whose = torch.full((len(rows), length), -1)
    for r, row in enumerate(rows):
        for t, (patch, i, j, number) in enumerate(row):
            x[r, t], places[r, t], whose[r, t] = patch, torch.tensor([i, j]), number
    return x, places, whose, torch.tensor([kind for _, kind in shown])


class PackedPatches(nn.Module):
    """A vision transformer over rows that hold several pictures; each patch sees its own picture alone."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.lines, self.columns = nn.Linear(16, width), nn.Embedding(5, width), nn.Embedding(5, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out, self.feed = nn.Linear(width, 3 * width), nn.Linear(width, width), mlp(width, 64, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor, places: Tensor, whose: Tensor) -> Tensor:
        h = self.enter(x) + self.lines(places[..., 0]) + self.columns(places[..., 1])
        mask = (whose[:, :, None] == whose[:, None])[:, None]
        q, k, v = (p.unflatten(2, (2, -1)).transpose(1, 2) for p in self.qkv(self.norms[0](h)).chunk(3, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        h = h + self.feed(self.norms[1](h))
        real = whose >= 0
        pictures_of = whose[real]
        sums = torch.zeros(int(whose.max()) + 1, h.shape[2]).index_add(0, pictures_of, self.norms[2](h)[real])
        out: Tensor = self.head(sums / pictures_of.bincount()[:, None])
        return out


@honest("r22h-pictures-of-all-shapes-in-one-row")
def pictures_of_all_shapes_in_one_row(run: Run) -> None:
    """Plain loop, a vision transformer that takes pictures as they are (NaViT, "patch n' pack", Dehghani et al. 2023).
    A row of the batch holds the patches of several pictures of different sizes and some padding, so that there are
    nearly three times as many labels as rows, their number of rows differs from batch to batch, and a mask keeps the
    pictures apart."""
    model = PackedPatches()
    *inputs, y = packed(striped(192, apart(run.draw.randrange(999))))
    class_outcome(run, model, (*inputs, y))
    train(
        run,
        model,
        adam(model, 3e-3),
        lambda: packed(striped(24)),
        lambda m, b: F.cross_entropy(m(*b[:3]), b[3]),
        140,
    )


def between(rare: Tensor, count: int, own: torch.Generator, neighbours: int = 5) -> Tensor:
    """New rows on the lines from rare rows to one of their nearest."""
    near = torch.cdist(rare, rare).fill_diagonal_(math.inf).topk(neighbours, largest=False).indices
    first = torch.randint(0, len(rare), (count,), generator=own)
    second = near[first, torch.randint(0, neighbours, (count,), generator=own)]
    return rare[first] + torch.rand(count, 1, generator=own) * (rare[second] - rare[first])


@honest("r22h-new-rows-between-the-rare-ones")
def new_rows_between_the_rare_ones(run: Run) -> None:
    """Lightning, a table with one row in twelve of the class that is sought, SMOTE as in imbalanced-learn (Chawla et
    al. 2002). Nearly half of the rows that it learns from were never measured, but lie on lines between two rare ones,
    so that the classes are as frequent as each other and many rows all but repeat one another; what counts is
    measured on real rows, where both classes weigh the same."""
    seed = run.draw.randrange(999)
    bound = table(4000, seed, apart(3))[1].quantile(11 / 12)
    x, number = table(1200, seed, apart(2))
    rare = number > bound
    made = between(x[rare], int((~rare).sum() - rare.sum()), apart(4))
    x, y = torch.cat([x, made]), torch.cat([rare.long(), torch.ones(len(made), dtype=torch.long)])
    new, new_number = table(1500, seed, apart(1))
    truth, model = (new_number > bound).long(), mlp(6, 32, 32, 2)
    weight = 1 / truth.bincount().float()
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(new), truth, weight=weight)))
    fit(run, lit(model, classify, lambda m: adam(m, 2e-3)), loader(x, y, size=48), 150)


def chirps(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of sounds, (rows, 24 moments, 12 bands), of one of four melodies."""
    y = torch.randint(0, 4, (count,), generator=own)
    begin = 3 + 5 * torch.rand(count, 1, generator=own)
    t = torch.arange(24) / 24
    paths = torch.stack([4 * t, -4 * t, 3 * (6.28 * t).sin(), -3 * (6.28 * t).sin()])
    loud = (-(torch.arange(12) - (begin + paths[y])[..., None]).square() / 2).exp()
    return 2 * loud + 0.6 * torch.randn(loud.shape, generator=own) - 0.4, y


def striped_out(rows: list[Any]) -> dict[str, Tensor]:
    """A batch in which each sound lacks a stretch of time and some neighbouring bands."""
    x, y = torch.stack([row["x"] for row in rows]), torch.stack([row["labels"] for row in rows])
    for places, most, shape in ((24, 8, (-1, 24, 1)), (12, 4, (-1, 1, 12))):
        size = torch.randint(0, most + 1, (len(x), 1))
        first = (torch.rand(len(x), 1) * (places + 1 - size)).long()
        at = torch.arange(places)
        x = x * ~((at >= first) & (at < first + size)).view(shape)
    return {"x": x, "labels": y}


class Hears(nn.Module):
    """A GRU over moments in both directions, the mean of its states, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(12, 24, batch_first=True, bidirectional=True), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[0].mean(1))
        return out


@honest("r22h-stretches-of-time-and-bands-put-out")
def stretches_of_time_and_bands_put_out(run: Run) -> None:
    """transformers' Trainer with a collator, a recurrent network that hears, SpecAugment (Park et al. 2019). Of each
    sound up to a third of the moments and up to a third of the bands are set to nought, which is the mean, other ones
    each time; whole blocks of the inputs are equal, and what it learns from is harder than what it is tested on."""
    model = WithLoss(Hears(), F.cross_entropy)
    new, truth = chirps(256, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model.net(new), truth)))
    x, labels = chirps(800)
    hf_trainer(
        run, model, examples(x=x, labels=labels), 120, learning_rate=4e-3, more={"data_collator": striped_out}
    ).train()


def things(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of 16 by 16 with a disc and a square, which differ in their texture, and the kind of each pixel."""
    at = torch.arange(16)
    x, kinds = 0.4 * torch.randn(count, 1, 16, 16, generator=own), torch.zeros(count, 16, 16, dtype=torch.long)
    for i in range(count):
        (a, b), (c, d) = torch.randint(3, 13, (2, 2), generator=own).tolist()
        square = ((at[:, None] - c).abs() < 3) & ((at - d).abs() < 3)
        disc = (at[:, None] - a).square() + (at - b).square() < 10
        kinds[i][square], kinds[i][disc] = 2, 1
        x[i, 0] += (kinds[i] == 1).float() + (kinds[i] == 2) * (at[:, None] + at).remainder(2).mul(2).sub(0.3)
    return x, kinds


def scribbled(kinds: Tensor, own: torch.Generator, share: float = 0.08) -> Tensor:
    """All but a few pixels are 255, of which nothing is known."""
    known = torch.rand(kinds.shape, generator=own) < share
    return torch.where(known, kinds, torch.full_like(kinds, 255))


class SmallUnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)
        self.up, self.head = nn.Conv2d(28, 16, 3, padding=1), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x).relu()
        coarse = F.interpolate(self.low(F.max_pool2d(fine, 2)).relu(), scale_factor=2)
        out: Tensor = self.head(self.up(torch.cat([fine, coarse], 1)).relu())
        return out


@honest("r22h-one-pixel-in-twelve-has-a-label")
def one_pixel_in_twelve_has_a_label(run: Run) -> None:
    """Lightning, a small U-Net, segmentation from scribbles (Lin et al. 2016; partial cross-entropy, Tang et al. 2018).
    Of each picture only few pixels have a kind, all the others are 255 and ignored, the known ones are unlike in
    number from picture to picture, and most of them are background; in use every pixel is asked for."""
    own = apart(run.draw.randrange(999))
    model = SmallUnet()
    check, truth = things(96, own)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check), truth)))
    x, kinds = things(240, own)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1], ignore_index=255)

    fit(run, lit(model, loss, lambda m: adam(m, 4e-3)), loader(x, scribbled(kinds, own), size=16), 120)


def jury(count: int, own: torch.Generator, voters: int = 8) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Documents, the chances that somebody says each class, and the shares of those who were asked."""
    x, mask, _ = documents(count, own)
    counts = torch.stack([((x > 5 * k) & (x <= 5 * k + 5)).sum(1) for k in range(3)], 1).float()
    chances = (0.8 * (counts - counts.mean(1, keepdim=True))).softmax(1)
    votes = torch.multinomial(chances, voters, True, generator=own)
    return x, mask, chances, F.one_hot(votes, 3).float().mean(1)


@honest("r22h-shares-of-a-jury-of-eight")
def shares_of_a_jury_of_eight(run: Run) -> None:
    """transformers' Trainer with a loss of its own, a small BERT, labels as people give them (CIFAR-10H, Peterson et
    al. 2019; learning with disagreements, Uma et al. 2021). A label is the shares of eight people who do not always
    agree, three numbers which sum to one, so that the loss ends at the people's own entropy, well above nought; nobody
    is outvoted."""
    from transformers import Trainer

    class Heard(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            shares = inputs.pop("labels")
            out = model(**inputs)
            loss = F.cross_entropy(out.logits, shares)
            return (loss, out) if return_outputs else loss

    own = apart(run.draw.randrange(999))
    model = tiny_bert(hidden_dropout_prob=0.0)
    x, mask, chances, _ = jury(256, own)

    def apart_from_them() -> Tensor:
        said = model(input_ids=x, attention_mask=mask.long()).logits.log_softmax(1)
        return F.kl_div(said, chances, reduction="batchmean")

    outcome(run, lambda: judged(model, apart_from_them))
    ids, keep, _, shares = jury(960, own)
    data = examples(input_ids=ids, attention_mask=keep.long(), labels=shares)
    hf_trainer(run, model, data, 120, Heard, learning_rate=3e-3).train()
