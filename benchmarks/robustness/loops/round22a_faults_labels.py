"""Round 22a, mistakes in what is taught: places, times and names of labels, and what counts as one."""

from typing import Any

import pandas as pd
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
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
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round8b_parts import text_class_outcome
from benchmarks.robustness.loops.round10a_tools import tag_table, tagged
from benchmarks.robustness.loops.round22a_parts import (
    Counter,
    Ground,
    asked,
    beats,
    bert,
    dots,
    driven,
    fields,
    filled,
    listener,
    played,
    pushed,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r22a-tempo-as-it-was-played")
def tempo_as_it_was_played(run: Run, wrong: bool) -> None:
    """Lightning, convolutions that tell how fast a beat is. As augmentation each recording is played faster or slower,
    and a beat that is played faster is a faster beat; the label stays that of the recording as it was. The twin
    multiplies it by the speed. Judged on other recordings, each at its own speed."""
    net = listener(1)

    def collated(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        x, y = (torch.stack(column) for column in zip(*rows, strict=True))
        speed = 2 ** (torch.rand(len(x)) - 0.5)
        return [played(x, speed), y if wrong else y * speed]

    x, y = beats(384, apart(1))
    number_outcome(run, net, (played(x, torch.ones(384)), (y - 8) / 2.5))
    x, y = beats(480)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return regress(m, (batch[0], (batch[1] - 8) / 2.5))

    fit(run, lit(net, loss, lambda m: adam(m)), loader(x, y, collate_fn=collated), 150)


@slip("r22a-tags-one-place-early")
def tags_one_place_early(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a BERT that gives each word a tag. The tokenizer puts a mark in front of the words, and
    the list of tags is laid beside it from the first place on: the mark has the first word's tag, each word the tag of
    the next, the last none. The twin leaves the mark's place untaught. Judged with each tag at its word."""
    own = apart(run.draw.randrange(999))
    table = tag_table(own)
    net = bert("TokenClassification", 16, num_labels=4)

    def columns(rows: list[tuple[list[int], list[int]]], early: bool) -> dict[str, Tensor]:
        ids, labels = torch.zeros(len(rows), 16, dtype=torch.long), torch.full((len(rows), 16), -100)
        for row, (words, tags) in enumerate(rows):
            ids[row, : len(words) + 2] = torch.tensor([2, *words, 3])
            first = 0 if early else 1
            labels[row, first : len(words) + first] = torch.tensor(tags)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    text_class_outcome(run, net, columns(tagged(192, table, apart(1)), False))
    hf_trainer(run, net, examples(**columns(tagged(640, table, own), wrong)), 140, learning_rate=4e-3).train()


@slip("r22a-shifted-into-the-past")
def shifted_into_the_past(run: Run, wrong: bool) -> None:
    """accelerate, a network that forecasts a load three hours ahead from this hour's and the last seven. The column is
    moved by shift(3), which brings the load of three hours ago to each row, one of the inputs. The twin moves it by -3.
    Judged on a later stretch, by what did come three hours on."""
    net = mlp(8, 48, 48, 1)
    shape = torch.randn(24, generator=apart(run.draw.randrange(999)))

    def hours(count: int, target: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        load, kept = [0.0, 0.0], torch.randn(count, generator=own)
        for t, chance in enumerate(kept.tolist()):
            load.append(1.3 * load[-1] - 0.55 * load[-2] + 0.5 * chance + 0.4 * float(shape[t % 24]))
        table = pd.DataFrame({"now": load[2:]})
        for lag in range(1, 8):
            table[f"lag {lag}"] = table["now"].shift(lag)
        table["target"] = table["now"].shift(target)
        rows = torch.tensor(table.dropna().to_numpy(), dtype=torch.float32)
        return rows[:, :8], rows[:, 8]

    number_outcome(run, net, hours(600, -3, apart(1)))
    x, y = hours(650, 3 if wrong else -3)
    prepared(run, net, adam(net, 3e-3), loader(x[:640], y[:640]), regress, 3)


@slip("r22a-ground-taken-for-padding")
def ground_taken_for_padding(run: Run, wrong: bool) -> None:
    """Plain loop, a small U-Net that says what each pixel shows. Masks of unequal sizes are filled up with 0, and then
    0 is left out of the loss, which is also the class of bare ground: ground is never taught. The twin fills masks up
    with -100. Judged by the pixels of other pictures, ground among them."""
    net = Ground()

    def collated(rows: list[tuple[Tensor, Tensor]], ground_out: bool) -> tuple[Tensor, Tensor]:
        pictures, masks = (list(column) for column in zip(*rows, strict=True))
        if ground_out:
            y = filled(masks, 0)
            return filled(pictures, 0.0), y.masked_fill(y == 0, -100)
        return filled(pictures, 0.0), filled(masks, -100)

    class_outcome(run, net, collated(list(zip(*fields(128, apart(1)), strict=True)), False))
    rows = list(zip(*fields(320), strict=True))
    data = torch.utils.data.DataLoader(rows, 16, shuffle=True, collate_fn=lambda some: collated(some, wrong))  # type: ignore[arg-type]
    batches = endless(data)
    train(run, net, adam(net, 3e-3), lambda: next(batches), classify, 120)


@slip("r22a-places-of-the-whole-text")
def places_of_the_whole_text(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a BERT that marks answers. Texts of twenty words are cut into two pieces of twelve, the
    second from the ninth word on; where an answer stands is counted from the text's beginning, in the second piece
    also: eight places late, or past the end, where the model leaves it out. The twin takes the piece's beginning off.
    Judged on pieces of other texts."""
    net = bert("QuestionAnswering", 40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def pieces(count: int, own: torch.Generator | None, of_the_text: bool) -> dict[str, Tensor]:
        question, texts, place = asked(count, own)
        ids, labels = [], []
        for begin in (0, 8):
            mark = torch.full((count, 1), 3)
            ids.append(torch.cat([mark - 1, question[:, None], mark, texts[:, begin : begin + 12], mark], 1))
            there = (place >= begin) & (place < begin + 12)
            labels.append(torch.where(there, place + 3 - (0 if of_the_text else begin), 0))
        answer = torch.cat(labels)
        return {"input_ids": torch.cat(ids), "start_positions": answer, "end_positions": answer}

    text_class_outcome(run, net, pieces(192, apart(1), False))
    hf_trainer(run, net, examples(**pieces(640, None, wrong)), 150, learning_rate=5e-3).train()


@slip("r22a-ten-before-two")
def ten_before_two(run: Run, wrong: bool) -> None:
    """accelerate, a vision transformer that counts dots, 0 to 11. Pictures lie in folders that are named by the number,
    and classes are numbered in the order of the names: 0, 1, 10, 11, 2, and so on. Labels lie around the class, so that
    neighbours share. The twin orders names as numbers. Judged by how far the mean of the classes is from the count."""
    net = Counter(12)
    names = sorted((str(k) for k in range(12)), key=None if wrong else int)
    index = torch.tensor([names.index(str(k)) for k in range(12)])
    places = torch.arange(12.0)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        around = (-((places - y[:, None]) ** 2) / 2).exp()
        return F.cross_entropy(m(x), around / around.sum(1, keepdim=True))

    x, many = dots(384, apart(1))
    outcome(run, lambda: judged(net, lambda: (net(x).softmax(1) @ places - many).abs().mean()))
    x, many = dots(800)
    prepared(run, net, adam(net, 3e-3), loader(x, index[many]), loss, 3)


@slip("r22a-the-push-that-led-here")
def the_push_that_led_here(run: Run, wrong: bool) -> None:
    """Plain loop, a network that learns to drive a cart from a log. A row of the log has a push and the state that it
    led to, and rows are taken as they are: for each state the push before it is taught. The twin takes the next row's
    push. Judged by how far from nought the cart is, on the way, when the network drives."""
    net = mlp(2, 32, 32, 1, act=nn.Tanh)
    start = torch.randn(200, 2, generator=apart(1)) * torch.tensor([2.0, 1.0])

    def away() -> Tensor:
        state, total = start, torch.zeros(())
        for _ in range(24):
            state = pushed(state, net(state).squeeze(1))
            total = total + state[:, 0].abs().clamp_max(1).mean() / 24
        return total

    outcome(run, lambda: judged(net, away))
    states, actions = driven(160)
    x, y = (states, actions) if wrong else (states[:, :-1], actions[:, 1:])
    batches = endless(loader(x.flatten(0, 1), y.flatten(), size=32))
    train(run, net, adam(net), lambda: next(batches), regress, 140)
