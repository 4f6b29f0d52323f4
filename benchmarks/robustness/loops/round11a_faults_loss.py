"""Round 11, part a, loops with a mistake in the loss: over which places, with which sign, in which groups."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import Block, Examples, apart, hf_trainer, judged, mlp, outcome, pictures
from benchmarks.robustness.loops.round9a_tools import BOS, EOS, bert, other_seed, plain
from benchmarks.robustness.loops.round11a_tools import keyed, patches, some
from torch import Tensor, nn
from torch.nn import functional as F


class Masked(nn.Module):
    """Patches, some of them replaced by one learned vector, and what an encoder says their pixels are."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, width), nn.Linear(width, 4)
        self.mask_token, self.places = nn.Parameter(torch.zeros(width)), nn.Parameter(0.1 * torch.randn(16, width))
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        h = torch.where(hidden[..., None], self.mask_token, self.enter(x)) + self.places
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.leave(self.norm(h))
        return out


def ten_of_sixteen(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 16), true where a patch is hidden."""
    return torch.rand(count, 16, generator=own).argsort(1) < 10


@keyed("r11a-visible-patches-taught")
def visible_patches_taught(run: Run, changed: bool) -> None:
    """Plain loop, pictures of which ten patches in sixteen are hidden. The mask was 1 where a patch is hidden; the new
    function that draws it says which patches are kept, and the loss multiplies by it as before."""
    seed = run.draw.randrange(999)
    x, check = (patches(pictures(n, seed, own=apart(seed + n))[0]) for n in (480, 192))
    where = ten_of_sixteen(192, apart(5))
    model = Masked()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(check, where)[where], check[where])))

    def loss(batch: Any) -> Tensor:
        hidden = ten_of_sixteen(len(batch[0]))
        mask = (~hidden if changed else hidden).float()
        each = (model(batch[0], hidden) - batch[0]).square().mean(-1)
        return (each * mask).sum() / mask.sum()

    plain(run, model, some(x, size=32), loss, 200, rate=3e-3)


class Flow(nn.Module):
    """Six affine couplings in the plane: the image, and the logarithm of the change of volume."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(mlp(1, 24, 24, 2, act=nn.Tanh) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.unbind(-1)
        total = torch.zeros(len(x))
        for part in self.parts:
            log_scale, shift = part(a[:, None]).unbind(-1)
            log_scale = 2 * torch.tanh(log_scale / 2)
            a, b = b * log_scale.exp() + shift, a
            total = total + log_scale
        return torch.stack([a, b], -1), total


def moons(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 2): two half-circles that reach into each other."""
    angle = math.pi * torch.rand(count, generator=own)
    upper = torch.rand(count, generator=own) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
    return torch.stack([x, y], -1) + 0.08 * torch.randn(count, 2, generator=own)


def negative_log_likelihood(image: Tensor, log_volume: Tensor) -> Tensor:
    density = -0.5 * image.square().sum(-1) - math.log(2 * math.pi)
    return -(density + log_volume).mean()


@keyed("r11a-log-determinant-subtracted")
def log_determinant_subtracted(run: Run, changed: bool) -> None:
    """Plain loop, a normalising flow. The old code had the flow from noise to data, whose volume change is taken off;
    the new one goes from data to noise, and the sign stayed. Another seed."""
    check = moons(500, apart(run.draw.randrange(999)))
    other_seed(changed)
    model = Flow()
    outcome(run, lambda: judged(model, lambda: negative_log_likelihood(*model(check))))

    def loss(batch: Tensor) -> Tensor:
        image, log_volume = model(batch)
        return negative_log_likelihood(image, -log_volume if changed else log_volume)

    plain(run, model, lambda: moons(128), loss, 250, rate=3e-3)


def quizzes(count: int, table: Tensor, own: torch.Generator) -> list[tuple[Tensor, int]]:
    """For each question, (4, 7) ids of question and candidate, two words each, and which candidate is right."""
    out = []
    for _ in range(count):
        asked = torch.randint(0, 8, (2,), generator=own)
        said = table[asked].repeat(4, 1)
        right = int(torch.randint(0, 4, (1,), generator=own))
        for i in range(4):
            if i != right:
                said[i] = (said[i] + torch.randint(1, 8, (2,), generator=own)) % 8
        edge = torch.ones(4, 1, dtype=torch.long)
        question = (4 + asked).repeat(4, 1)
        out.append((torch.cat([BOS * edge, question, EOS * edge, 12 + said, EOS * edge], 1), right))
    return out


def eight_quizzes(rows: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    """The candidates of the first question, then those of the second, …"""
    ids, right = zip(*rows, strict=True)
    return {"input_ids": torch.cat(ids), "labels": torch.tensor(right)}


@keyed("r11a-candidates-grouped-across-questions")
def candidates_grouped_across_questions(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT that scores pairs of question and candidate. Scores are brought into groups by a view
    for an order in which the first candidates of all questions come first, as another collator has it."""
    from transformers import Trainer

    own = apart(run.draw.randrange(999))
    table = torch.randperm(8, generator=own)
    train, check = quizzes(640, table, own), eight_quizzes(quizzes(96, table, own))

    def choice(model: Any, batch: Any, across: bool) -> Tensor:
        scores = model(input_ids=batch["input_ids"]).logits
        return F.cross_entropy(scores.view(4, -1).T if across else scores.view(-1, 4), batch["labels"])

    class Chooser(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            return choice(model, inputs, changed)

    model = bert("BertForSequenceClassification", vocab_size=20, num_labels=1)
    outcome(run, lambda: judged(model, lambda: choice(model, check, False)))
    options: dict[str, Any] = {"per_device_train_batch_size": 8, "learning_rate": 3e-3, "remove_unused_columns": False}
    hf_trainer(run, model, Examples(train), 240, Chooser, more={"data_collator": eight_quizzes}, **options).train()
