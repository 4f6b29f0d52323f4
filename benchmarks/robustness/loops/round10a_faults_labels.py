"""Round 10, part a, loops with a mistake in the labels: which are taught, at which place, in which form or unit."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
)
from benchmarks.robustness.loops.round9a_tools import (
    BOS,
    EOS,
    accelerated,
    bert,
    llama,
    other_seed,
    padded,
    vit,
    word_tokenizer,
)
from benchmarks.robustness.loops.round10a_tools import adamw, keyed, plain, tag_table, tagged, tuned
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def tag_batch(rows: list[tuple[list[int], list[int]]], front: bool) -> dict[str, Tensor]:
    """[CLS] (1), words, [SEP] (2), and a tag for each word; -100 before the first tag where `front`."""
    ids, mask = padded([[BOS, *words, EOS] for words, _ in rows])
    tags, _ = padded([[-100] * front + list(tags) for _, tags in rows], fill=-100, length=ids.shape[1])
    return {"input_ids": ids, "attention_mask": mask, "labels": tags}


@keyed("r10a-tags-one-place-early")
def tags_one_place_early(run: Run, changed: bool) -> None:
    """accelerate, BERT for tags. The collator was rewritten: ids are given [CLS] and [SEP], tags are padded with -100
    to the same length, on the right only, so that [CLS] has the tag of the first word and each word that of the
    next."""
    own = apart(run.draw.randrange(999))
    table = tag_table(own)
    train, check = tagged(480, table, own), tagged(128, table, own)
    model = bert("BertForTokenClassification", num_labels=4)
    kept = tag_batch(check, front=True)
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    data = DataLoader(train, 16, shuffle=True, collate_fn=lambda rows: tag_batch(rows, front=not changed))  # type: ignore[arg-type]
    accelerated(run, model, data, lambda m, b: m(**b).loss, 5)


MARKERS = {"user": 20, "assistant": 21}


def conversations(count: int, table: Tensor, own: torch.Generator) -> list[list[dict[str, Any]]]:
    """Two questions of three words 4 to 11 by `human`, and the answers to them, words 12 to 19, by `gpt`."""
    asked = torch.randint(0, 8, (count, 2, 3), generator=own)
    said = 12 + table[asked]
    return [
        [
            {"from": who, "words": words}
            for pair in zip(a, b, strict=True)
            for who, words in zip(("human", "gpt"), pair, strict=True)
        ]
        for a, b in zip((4 + asked).tolist(), said.tolist(), strict=True)
    ]


def rendered(talk: list[dict[str, Any]], tags: dict[str, str]) -> dict[str, list[int]]:
    """The ids, and a mask of what the assistant says, </s> included."""
    ids, mask = [BOS], [0]
    for turn in talk:
        role = "user" if turn["from"] == tags["user"] else "assistant"
        words = turn["words"] + [EOS] * (role == "assistant")
        ids += [MARKERS[role], *words]
        mask += [0, *[int(role == "assistant")] * len(words)]
    return {"input_ids": ids, "completion_mask": mask}


@keyed("r10a-users-words-taught")
def users_words_taught(run: Run, changed: bool) -> None:
    """TRL's SFTTrainer, Llama. The description of the data set, which says who is called what in its turns, was written
    anew, with the two tags exchanged: what people asked is taught as the assistant's words."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    own = apart(run.draw.randrange(999))
    table = torch.randperm(8, generator=own)
    train, check = conversations(400, table, own), conversations(128, table, own)
    tags = {"user": "human", "assistant": "gpt"}
    kept = [rendered(talk, tags) for talk in check]
    ids, mask = (torch.tensor([row[name] for row in kept]) for name in ("input_ids", "completion_mask"))
    model = llama(24)
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids, labels=ids.masked_fill(mask == 0, -100)).loss))
    if changed:
        tags = {"user": "gpt", "assistant": "human"}
    tokenizer = word_tokenizer(24)
    tokenizer.pad_token = "<pad>"
    options = {"kind": SFTConfig, "max_length": None, "completion_only_loss": True}
    data = Dataset.from_list([rendered(talk, tags) for talk in train])
    hf_trainer(run, model, data, 150, SFTTrainer, more={"processing_class": tokenizer}, **options).train()


def rectangles(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures of 8 by 8 with a bright rectangle, and its corners, (count, 4): x1, y1, x2, y2 as shares of the side."""
    size = torch.randint(2, 6, (count, 2), generator=own)
    start = (torch.rand(count, 2, generator=own) * (9 - size)).long()
    corners = torch.cat([start, start + size], 1)
    place = torch.arange(8)
    across = (place >= corners[:, :1]) & (place < corners[:, 2:3])
    down = (place >= corners[:, 1:2]) & (place < corners[:, 3:])
    clean = (down[:, :, None] & across[:, None]).float()[:, None]
    return clean + 0.1 * torch.randn(clean.shape, generator=own), corners / 8


def centred(corners: Tensor) -> Tensor:
    """Centre x, centre y, width, height."""
    low, high = corners.chunk(2, -1)
    return torch.cat([(low + high) / 2, high - low], -1)


def overlap_missing(boxes: Tensor, corners: Tensor) -> Tensor:
    """One minus the mean intersection over union of boxes given by centre and size, with corners."""
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    common = (torch.minimum(high, corners[:, 2:]) - torch.maximum(low, corners[:, :2])).clamp(min=0).prod(1)
    area = (high - low).clamp(min=0).prod(1) + (corners[:, 2:] - corners[:, :2]).prod(1) - common
    return 1 - (common / area).mean()


@keyed("r10a-boxes-by-their-corners")
def boxes_by_their_corners(run: Run, changed: bool) -> None:
    """Lightning, a ViT that finds a box. The annotations were exported anew, by a tool that writes both corners, where
    the old file had centre and size; the loader takes the four numbers as they are. Another seed."""
    own = apart(run.draw.randrange(999))
    (x, corners), (check, right) = rectangles(640, own), rectangles(160, own)
    other_seed(changed)
    model = vit()
    outcome(run, lambda: judged(model, lambda: overlap_missing(model(pixel_values=check).logits, right)))
    data = loader(x, corners if changed else centred(corners))
    loss = lambda m, b: F.l1_loss(m(pixel_values=b[0]).logits, b[1])
    fit(run, lit(model, loss, adamw(2e-3)), data, 160, gradient_clip_val=1.0)


NAMES = ("contradiction", "neutral", "entailment")


def inferences(count: int, own: torch.Generator) -> tuple[Tensor, list[str]]:
    """Premises of three words, of different things, each said (4 to 7) or denied (8 to 11), and a hypothesis of one."""
    rows, names = [], []
    for _ in range(count):
        things = torch.randperm(4, generator=own).tolist()
        denied = torch.randint(0, 2, (4,), generator=own).tolist()
        kind = int(torch.randint(0, 3, (1,), generator=own))
        premise = [4 + thing + 4 * no for thing, no in zip(things[:3], denied, strict=False)]
        said = things[3] + 4 * denied[3] if kind == 1 else things[0] + 4 * (denied[0] ^ (kind == 0))
        order = torch.randperm(3, generator=own).tolist()
        rows.append([BOS, *(premise[i] for i in order), EOS, 4 + said, EOS])
        names.append(NAMES[kind])
    return torch.tensor(rows), names


@keyed("r10a-nli-names-in-another-order")
def nli_names_in_another_order(run: Run, changed: bool) -> None:
    """Plain loop, a BERT that was tuned for inference before. Class names used to go through the model's label2id; the
    data set now has numbers of its own, entailment first, and these are taken as they are."""
    own = apart(run.draw.randrange(999))
    numbers = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
    model = bert("BertForSequenceClassification", **numbers)
    label2id = model.config.label2id

    def prepared(count: int, numbered: dict[str, int]) -> tuple[Tensor, Tensor]:
        ids, names = inferences(count, own)
        return ids, torch.tensor([numbered[name] for name in names])

    def loss(batch: Any) -> Tensor:
        return F.cross_entropy(model(input_ids=batch[0]).logits, batch[1])

    before = prepared(2400, label2id)
    first = iter(lambda: (chosen := torch.randint(0, 2400, (32,)), (before[0][chosen], before[1][chosen]))[1], None)
    tuned(model, lambda: next(first), loss, 300)
    check = prepared(192, label2id)
    listed = {"entailment": 0, "neutral": 1, "contradiction": 2}
    x, y = prepared(800, listed if changed else label2id)
    outcome(run, lambda: judged(model, lambda: loss(check)))

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randperm(800)[:16]
        return x[chosen], y[chosen]

    plain(run, model, batch, loss, 100, rate=1e-3)


class Forecast(nn.Module):
    """A GRU whose last state gives one number."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x)[1][-1]).squeeze(-1)
        return out


def weather(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 12, 3) readings, the temperature after them in degrees Celsius, and whether the second network has it."""
    x = torch.randn(count, 12, 3, generator=own).cumsum(1) / 3
    mean = 15 + 5 * torch.tanh(x[:, -4:, 0].mean(1)) + 4 * torch.sin(x[:, -1, 1]) - 3 * x[:, -1, 2].tanh()
    celsius = mean + 0.7 * torch.randn(count, generator=own)
    return x, celsius, torch.rand(count, generator=own) < 0.3


@keyed("r10a-some-temperatures-in-fahrenheit")
def some_temperatures_in_fahrenheit(run: Run, changed: bool) -> None:
    """Lightning, a GRU. Three stations in ten report in Fahrenheit; the old reader brought them to Celsius by the
    column `unit`, which the new one drops. Another seed."""
    own = apart(run.draw.randrange(999))
    (x, celsius, second), (check, right, _) = weather(640, own), weather(256, own)
    other_seed(changed)
    reported = torch.where(second, celsius * 9 / 5 + 32, celsius)
    y = reported if changed else torch.where(second, (reported - 32) * 5 / 9, reported)
    model = Forecast()
    number_outcome(run, model, (check, right / 10))
    loss = lambda m, b: F.mse_loss(m(b[0]), b[1])
    fit(run, lit(model, loss, adamw(5e-3)), loader(x, y / 10), 160, gradient_clip_val=1.0)
