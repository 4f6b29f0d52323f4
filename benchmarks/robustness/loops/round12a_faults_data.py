"""Round 12, part a, loops with a mistake in the data: what is hidden, joined, or put in the place of a word."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, endless, judged, outcome, pictures
from benchmarks.robustness.loops.round9a_tools import MASK, accelerated, bert, other_seed
from benchmarks.robustness.loops.round10a_tools import plain
from benchmarks.robustness.loops.round11a_tools import letters
from benchmarks.robustness.loops.round12a_tools import Messages, Seeing, keyed, networks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


@keyed("r12a-fill-not-kept")
def fill_not_kept(run: Run, changed: bool) -> None:
    """accelerate, BERT taught to fill in words. The collator wrote <mask> into the chosen places of its ids; the line
    became a call of masked_fill, whose result nobody keeps: the words stand there to be read."""
    seed = run.draw.randrange(999)
    own = apart(seed + 1)
    train, check = letters(seed, 960, own, length=20), letters(seed, 128, own, length=20)
    model = bert("BertForMaskedLM")

    def collate(rows: list[Tensor], generator: torch.Generator | None = None) -> dict[str, Tensor]:
        ids = torch.stack(rows)
        chosen = torch.rand(ids.shape, generator=generator) < 0.15
        labels = ids.masked_fill(~chosen, -100)
        if changed and generator is None:
            ids.masked_fill(chosen, MASK)
        else:
            ids[chosen] = MASK
        return {"input_ids": ids, "labels": labels}

    hidden = collate(list(check), apart(seed + 2))
    outcome(run, lambda: judged(model, lambda: model(**hidden).loss))
    data = DataLoader(list(train), 16, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
    accelerated(run, model, data, lambda m, b: m(**b).loss, 4)


def one_graph(rows: list[Any], shifted: bool = True) -> dict[str, Tensor]:
    """Graphs as the parts of a large one."""
    edges, start = [], 0
    for kinds, joined, _ in rows:
        edges.append(joined + start)
        if shifted:
            start += len(kinds)
    graph = torch.cat([torch.full((len(kinds),), i) for i, (kinds, _, _) in enumerate(rows)])
    y = torch.tensor([y for _, _, y in rows])
    return {"kinds": torch.cat([row[0] for row in rows]), "edges": torch.cat(edges, 1), "graph": graph, "labels": y}


def graph_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["kinds"], batch["edges"], batch["graph"]), batch["labels"])


@keyed("r12a-edges-not-offset")
def edges_not_offset(run: Run, changed: bool) -> None:
    """Plain loop, a graph network on batches of small graphs. The library's collator, which counts the nodes on from
    graph to graph, was replaced by a few lines that join the lists of edges as they are: all edges lie in the first
    graphs' nodes. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = networks(480, own), one_graph(networks(160, own))
    other_seed(changed)
    model = Messages(3, 2)
    outcome(run, lambda: judged(model, lambda: graph_loss(model, check)))
    data = DataLoader(train, 16, shuffle=True, collate_fn=lambda rows: one_graph(rows, shifted=not changed))  # type: ignore[arg-type]
    batches = endless(data)
    plain(run, model, lambda: next(batches), lambda b: graph_loss(model, b), 180)


PIC, ASK = 3, 4


def questions(count: int, seed: int, own: torch.Generator) -> list[tuple[list[int], Tensor | None]]:
    """Seven ids: a picture's four placeholders or four words, of which the first decides; a question mark, the answer
    in a word 20 to 23, an end; and the picture where there is one."""
    shots, classes = pictures(count, seed, own=own)
    words = torch.randint(5, 20, (count, 4), generator=own)
    has = torch.rand(count, generator=own) < 0.6
    answer = 20 + torch.where(has, classes, words[:, 0] % 4)
    return [
        ([*([PIC] * 4 if has[i] else words[i].tolist()), ASK, int(answer[i]), 2], shots[i] if has[i] else None)
        for i in range(count)
    ]


@keyed("r12a-empty-pictures-sent-along")
def empty_pictures_sent_along(run: Run, changed: bool) -> None:
    """Plain loop, a small GPT that reads pictures. Rows without a picture sent none; the new collator, for batches of
    one shape, sends an empty one with them. The model fills its placeholders from the front, so that behind the first
    row of words all rows get another's picture. Another seed."""
    seed = run.draw.randrange(999)
    own = apart(seed + 1)
    train, check = questions(640, seed, own), questions(192, seed, own)
    other_seed(changed)
    model = Seeing(24, PIC)

    def collate(rows: list[Any], filled: bool) -> dict[str, Tensor]:
        shots = [torch.zeros(1, 8, 8) if shot is None else shot for _, shot in rows if filled or shot is not None]
        ids = torch.tensor([ids for ids, _ in rows])
        labels = ids.clone()
        labels[:, :5] = -100
        return {"input_ids": ids, "pixel_values": torch.stack(shots), "labels": labels}

    def loss(batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"], batch["pixel_values"])[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    kept = collate(check, filled=False)
    outcome(run, lambda: judged(model, lambda: loss(kept)))
    data = DataLoader(train, 16, shuffle=True, collate_fn=lambda rows: collate(rows, filled=changed))  # type: ignore[arg-type]
    batches = endless(data)
    plain(run, model, lambda: next(batches), loss, 180)
