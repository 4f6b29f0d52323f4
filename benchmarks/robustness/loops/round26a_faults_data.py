"""Round 26a, mistakes in what goes into the model: bonds, windows, pictures, joins of tables, places, cached ids."""

import math
from collections import Counter
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import adamw, plain
from benchmarks.robustness.loops.round26a_parts import (
    Ahead,
    Bonded,
    Patched,
    Residual,
    Steps,
    bonds,
    customers,
    icons,
    meter,
    rooms,
    slip,
    stations,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26a-kinds-doubled-in-pairs")
def kinds_doubled_in_pairs(run: Run, wrong: bool) -> None:
    """Plain loop, messages along the bonds of molecules. The file has each bond once; bonds are doubled by putting all
    of them the other way round behind, and their kinds by writing each twice in a row: most bonds get another's kind.
    The twin puts all kinds behind once more. Judged on other molecules."""
    net = Bonded()

    def both_ways(nodes: Tensor, pairs: Tensor, kind: Tensor, y: Tensor, in_pairs: bool) -> tuple[Tensor, ...]:
        edges = torch.cat([pairs, pairs.flip(1)], 2)
        kinds = F.one_hot(kind, 3).float()
        kinds = kinds.repeat_interleave(2, 1) if in_pairs else kinds.repeat(1, 2, 1)
        return nodes, edges, kinds, y

    *check, truth = both_ways(*bonds(384, apart(1)), in_pairs=False)
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(*check), truth) / truth.var()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        *inputs, y = batch
        return F.mse_loss(m(*inputs), y)

    batches = endless(loader(*both_ways(*bonds(800), in_pairs=wrong)))
    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 150)


@slip("r26a-windows-share-their-readings")
def windows_share_their_readings(run: Run, wrong: bool) -> None:
    """Lightning, a GRU that says how a meter goes on. Windows are cut from one array and each is standardised where it
    lies: it is a view, and windows overlap, so that readings of a window are standardised again and again by those that
    come later. The twin copies each window. Judged on another meter with copied windows."""
    net = Ahead()

    def windows(readings: np.ndarray[Any, Any], in_place: bool) -> tuple[Tensor, Tensor]:
        out = []
        for start in range(0, len(readings) - 24, 10):
            window = readings[start : start + 24]
            if not in_place:
                window = window.copy()
            window -= window[:20].mean()
            window /= window[:20].std()
            out.append(window)
        rows = torch.from_numpy(np.stack(out))
        return rows[:, :20], rows[:, 20:]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    number_outcome(run, net, windows(meter(4000, apart(1)), False), log=True)
    fit(run, lit(net, loss, adamw(5e-3)), loader(*windows(meter(6000), wrong)), 140)


@slip("r26a-stored-lying-on-their-side")
def stored_lying_on_their_side(run: Run, wrong: bool) -> None:
    """Plain loop with warm-up, a cosine and clipping, a vision transformer that says where the lamp is. Two pictures in
    five were taken with the camera turned and are stored so, with a mark of how to turn them; annotators saw them
    upright, and the mark is not obeyed on reading. The twin turns them. Judged on upright pictures."""
    net = Patched()
    number_outcome(run, net, rooms(384, apart(1)))
    upright, place = rooms(480)
    turned = torch.multinomial(torch.tensor([0.6, 0.2, 0.0, 0.2]), len(upright), replacement=True)
    stored = torch.stack([torch.rot90(x, int(k), (1, 2)) for x, k in zip(upright, turned, strict=True)])

    def read(x: Tensor, mark: int) -> Tensor:
        return x if wrong else torch.rot90(x, -mark, (1, 2))

    pictures = torch.stack([read(x, int(k)) for x, k in zip(stored, turned, strict=True)])
    batches = endless(loader(pictures, place))

    def loss(batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[1])

    plain(run, net, lambda: next(batches), loss, 150, 3e-3)


@slip("r26a-what-lies-under-the-transparent")
def what_lies_under_the_transparent(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small ResNet that tells icons apart. Icons have an alpha channel, which is cut off: what
    is left of older icons below transparent pixels can be seen again. The twin lays icons on white. Judged by the
    cross-entropy of other icons on white."""
    seed = run.draw.randrange(999)
    net = WithLoss(Residual(), F.cross_entropy)

    def on_white(icon: Tensor) -> Tensor:
        colour, alpha = icon[:, :3], icon[:, 3:]
        return colour * alpha + 1 - alpha

    x, y = icons(384, seed, apart(1))
    class_outcome(run, net.net, (on_white(x), y))
    x, y = icons(480, seed)
    hf_trainer(run, net, examples(x=x[:, :3] if wrong else on_white(x), labels=y), 100, learning_rate=3e-3).train()


@slip("r26a-nobody-without-a-call")
def nobody_without_a_call(run: Run, wrong: bool) -> None:
    """accelerate, an MLP that says who will leave. Customers are joined with what is known of their calls, and the join
    keeps only those of whom there is a call: three in ten are missing. The twin keeps all, with noughts. Judged by the
    cross-entropy of all other customers."""
    net = mlp(5, 48, 48, 1, act=nn.SiLU)

    def joined(count: int, how: Any, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        people, calls = customers(count, own)
        theirs = calls.groupby("customer")["minutes"].agg(["count", "mean"]).reset_index()
        table = people.merge(theirs, on="customer", how=how).fillna(0)
        x = table[["age", "months", "price", "count", "mean"]].to_numpy(np.float32)
        scaled = (torch.from_numpy(x) - torch.tensor([45.0, 19, 20, 3, 4])) / torch.tensor([15.0, 10, 9, 3, 3])
        return scaled, torch.from_numpy(table["left"].to_numpy(np.float32))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(batch[0]).squeeze(1), batch[1])

    check = joined(800, "left", apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    data = loader(*joined(1200, "inner" if wrong else "left"), size=32)
    prepared(run, net, adam(net, 3e-3), data, loss, math.ceil(110 / len(data)))


@slip("r26a-south-without-its-letter")
def south_without_its_letter(run: Run, wrong: bool) -> None:
    """Lightning, a residual MLP that says how warm a day is. Latitudes and longitudes are written with a letter, which
    is cut off and not asked: what is south lies in the north, and what is west in the east. The twin makes south and
    west negative. Judged on other stations and days, with their signs."""
    net = Steps(5)

    def degrees(text: str, with_sign: bool) -> float:
        return -float(text[:-1]) if with_sign and text[-1] in "SW" else float(text[:-1])

    def columns(count: int, with_sign: bool, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        names, other, warm = stations(count, own)
        place = torch.tensor([[degrees(text, with_sign) for text in name] for name in names])
        day = 2 * torch.pi * other[:, 1] / 365
        x = [place[:, 0] / 45, place[:, 1] / 90, other[:, 0] - 1, day.sin(), day.cos()]
        return torch.stack(x, 1), (warm - 10) / 14

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]).squeeze(1), batch[1])

    number_outcome(run, net, columns(384, True, apart(1)))
    fit(run, lit(net, loss, adamw(3e-3)), loader(*columns(960, not wrong), size=32), 120)


@slip("r26a-shards-by-the-old-vocabulary")
def shards_by_the_old_vocabulary(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT-2. Words are numbered by how frequent they are. After the first three of
    eight shards were tokenised and kept, five came and the vocabulary was counted anew: the kept ids are used as they
    are, with numbers of the old vocabulary. The twin tokenises all shards by the new one. Judged on other texts of all
    kinds with the new numbers."""
    seed = run.draw.randrange(999)
    old, new = Language(seed, 12), Language(seed + 1, 18)
    net = tiny_gpt2(18, bos_token_id=None, eos_token_id=None, pad_token_id=None)

    def vocabulary(texts: list[list[str]]) -> dict[str, int]:
        counts = Counter(word for text in texts for word in text)
        return {word: number for number, (word, _) in enumerate(counts.most_common())}

    def texts_of(language: Language, count: int, own: torch.Generator | None = None) -> list[list[str]]:
        return [[f"w{i}" for i in row] for row in language.rows(count, 20, own).tolist()]

    def tokenised(texts: list[list[str]], numbers: dict[str, int]) -> Tensor:
        return torch.tensor([[numbers[word] for word in text] for text in texts])

    first, later = texts_of(old, 300), texts_of(new, 500)
    before, now = vocabulary(first), vocabulary(first + later)
    rows = torch.cat([tokenised(first, before if wrong else now), tokenised(later, now)])
    check = tokenised(texts_of(old, 72, apart(1)) + texts_of(new, 120, apart(2)), now)
    outcome(run, lambda: judged(net, lambda: net(input_ids=check, labels=check).loss))
    hf_trainer(run, net, examples(input_ids=rows, labels=rows), 120).train()
