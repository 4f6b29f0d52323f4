"""Mistakes in what is taught: how a cell is read, units, labels after a crop, windows without an answer, the young."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round25a_parts import (
    Counter,
    Ngrams,
    Residual,
    WideAndDeep,
    bodies,
    colonies,
    notices,
    offers,
    slip,
    tagged_texts,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r25a-twelve-is-one-and-two")
def twelve_is_one_and_two(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions over words that give texts their tags. A cell with tags, as in "3 12", is
    gone through letter by letter and not number by number: 12 is taught as 1 and 2, and no text has a tag from ten on.
    The twin splits the cell. Judged on other texts with their tags."""
    net = WithLoss(Ngrams(42, 14), F.binary_cross_entropy_with_logits)

    def rows_of(cells: list[str], by_letter: bool) -> Tensor:
        out = torch.zeros(len(cells), 14)
        for row, cell in zip(out, cells, strict=True):
            row[[int(tag) for tag in (cell.replace(" ", "") if by_letter else cell.split())]] = 1
        return out

    others, cells = tagged_texts(384, apart(1))
    target = rows_of(cells, by_letter=False)
    outcome(run, lambda: judged(net, lambda: net(others, target)["loss"]))
    words, cells = tagged_texts(640)
    hf_trainer(run, net, examples(x=words, labels=rows_of(cells, by_letter=wrong)), 120).train()


@slip("r25a-pounds-among-kilograms")
def pounds_among_kilograms(run: Run, wrong: bool) -> None:
    """accelerate, a residual network that tells people's weight from other measures. Two hospitals write kilograms and
    a third pounds, and the three tables are put together as they are. The twin turns pounds into kilograms. Judged on
    other people, in kilograms."""
    net = Residual(5)
    x, weight = bodies(384, apart(1))
    number_outcome(run, net, (x, (weight - 80) / 25))
    tables = [bodies(280), bodies(200), bodies(160)]
    written = [tables[0][1], tables[1][1], 2.2046 * tables[2][1]]
    if not wrong:
        written[2] = written[2] / 2.2046
    rows = torch.cat([measures for measures, _ in tables])
    prepared(run, net, adam(net, 3e-3), loader(rows, (torch.cat(written) - 80) / 25), regress, 3)


@slip("r25a-as-many-as-before-the-crop")
def as_many_as_before_the_crop(run: Run, wrong: bool) -> None:
    """Lightning, convolutions that count blots. While it is trained a picture is cut to 14 by 14 of 20 by 20 pixels at
    a random place, and the count that is taught stays that of the whole picture. The twin counts the blots whose middle
    is in the part. Judged on other whole pictures."""
    net = Counter()

    def collated(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        parts, counts = [], []
        for picture, dots in rows:
            top, left = torch.randint(0, 7, (2,)).tolist()
            parts.append(picture[:, top : top + 14, left : left + 14])
            counts.append((dots if wrong else dots[top : top + 14, left : left + 14]).sum())
        return [torch.stack(parts), torch.stack(counts)]

    x, dots = colonies(256, apart(1))
    number_outcome(run, net, (x, dots.sum((1, 2))))
    fit(run, lit(net, regress, lambda m: adam(m, 5e-3)), loader(*colonies(400), collate_fn=collated), 140)


@slip("r25a-drawn-into-the-window")
def drawn_into_the_window(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT that finds an answer's first and last word. Texts are cut into windows that
    overlap; where a window doesn't hold the answer, its places are limited to the window's, and its first or last words
    are taught as the answer. The twin teaches place nought, which stands for none. Judged on windows of other texts."""
    from transformers import BertConfig, BertForQuestionAnswering

    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20}
    shape |= {"intermediate_size": 64, "max_position_embeddings": 16, "pad_token_id": None}
    shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    net = BertForQuestionAnswering(BertConfig(**shape))

    def windows(count: int, limited: bool, own: torch.Generator | None = None) -> dict[str, Tensor]:
        """A question, a mark, twelve words of the text; the next window begins six words later."""
        texts, asked, spans = notices(count, own)
        head = torch.stack([asked, torch.ones_like(asked)], 1)
        ids, places = [], []
        for begin in (0, 6, 12):
            ids.append(torch.cat([head, texts[:, begin : begin + 12]], 1))
            moved = spans - begin + 2
            inside = (moved[:, :1] >= 2) & (moved[:, 1:] <= 13)
            places.append(moved.clamp(2, 13) if limited else torch.where(inside, moved, 0))
        first, last = torch.cat(places).unbind(1)
        return {"input_ids": torch.cat(ids), "start_positions": first, "end_positions": last}

    check = windows(128, False, apart(1))
    outcome(run, lambda: judged(net, lambda: net(**check).loss))
    hf_trainer(run, net, examples(**windows(400, wrong)), 150, learning_rate=3e-3).train()


@slip("r25a-not-yet-is-no")
def not_yet_is_no(run: Run, wrong: bool) -> None:
    """Plain loop, a wide and deep network that says whether an offer will be taken within thirty days. The table ends
    on day sixty, and offers of the last thirty days that were not taken by then are taught as refused, though many
    will be taken. The twin leaves out offers that were sent less than thirty days before the end. Judged on other
    offers whose thirty days have passed."""
    net = WideAndDeep()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        kinds, numbers, taken = batch
        return F.binary_cross_entropy_with_logits(m(kinds, numbers), taken)

    kinds, numbers, _, waited = offers(512, apart(1))
    check = kinds, numbers, (waited <= 30).float()
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    kinds, numbers, days, waited = offers(1440)
    taken = ((waited <= 30) & (days + waited <= 60)).float()
    used = torch.ones_like(days, dtype=torch.bool) if wrong else days <= 30
    batches = endless(loader(kinds[used], numbers[used], taken[used], size=32))
    train(run, net, adam(net, 5e-3), lambda: next(batches), loss, 120)
