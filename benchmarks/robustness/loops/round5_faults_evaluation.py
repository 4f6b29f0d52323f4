"""Mistakes around evaluation, averages of weights and a trainer's state."""

import copy
import shutil
import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    documents,
    endless,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    table,
    tiny_bert,
)
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "evaluation, EMA and trainer state"


def classify(m: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


def step(run: Run, doctor: Any, optimizer: Any, loss: Tensor, batch: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    doctor.step(loss, batch)
    run.note(loss)


@fault(
    "r5-evaluation-mode-stays",
    FAMILY,
    (
        r"eval|mode|dropout|train\(\)",
        r"eval|train\(\)|left|stay|still|never|off|not (back|in training|set)|inactive|switched",
    ),
)
def evaluation_mode_stays(run: Run, wrong: bool) -> None:
    """evaluate() sets the model to eval() and nobody sets it back: from the first evaluation on BatchNorm keeps the
    statistics of three batches, which are mostly their zeros and ones still."""
    seed = run.draw.randrange(999)
    model = cnn()
    brighter = lambda b: (6 * b[0] + 8, b[1])
    class_outcome(run, model, brighter(pictures(256, seed, own=apart(1))))
    check = brighter(pictures(64, seed, own=apart(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    doctor = run.watch(model, optimizer)
    for at in range(60):
        batch = brighter(pictures(16, seed))
        step(run, doctor, optimizer, classify(model, batch), batch)
        if at % 20 == 2:
            model.eval()
            with torch.no_grad():
                classify(model, check)
            if not wrong:
                model.train()


@fault(
    "r5-judged-in-training-mode",
    FAMILY,
    (
        r"eval|mode|dropout|batch.?norm|train",
        r"eval|train(ing)? mode|active|still|no_grad|not (set|in|switched)|random|running|statistic",
    ),
)
def judged_in_training_mode(run: Run, wrong: bool) -> None:
    """evaluate() forgets eval(): dropout is on, BatchNorm normalises the few rows of an evaluation batch by themselves
    and learns their statistics. What is reported is judged."""
    seed = run.draw.randrange(999)
    model = cnn(drop=0.5)
    rows = loader(*pictures(96, seed, own=apart(1)), size=2, shuffle=False)
    reported: list[float] = [1e9]
    outcome(run, lambda: reported[-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for epoch in range(6):
        for _ in range(12):
            batch = pictures(24, seed)
            step(run, doctor, optimizer, classify(model, batch), batch)
        model.train(wrong)
        with torch.no_grad():
            reported.append(sum(float(classify(model, b)) for b in rows) / len(rows))
        model.train()


@fault(
    "r5-best-is-a-reference",
    FAMILY,
    (
        r"state_dict|best|checkpoint|copy|snapshot|overfit|weights",
        r"copy|reference|alias|clone|same (tensor|storage)|last|deepcopy|share|overfit",
    ),
)
def best_is_a_reference(run: Run, wrong: bool) -> None:
    """best = model.state_dict() keeps no copy: what is loaded at the end are the last, overfitted weights."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 96, 4))
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(40, seed)
    y[:14] = torch.randint(0, 4, (14,))
    check = pictures(128, seed, own=apart(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    lowest, best = 1e9, {}
    for _ in range(45):
        for batch in loader(x, y):
            step(run, doctor, optimizer, classify(model, batch), batch)
        value = judged(model, lambda: classify(model, check))
        if value < lowest:
            lowest, best = value, model.state_dict() if wrong else copy.deepcopy(model.state_dict())
    model.load_state_dict(best)


@fault(
    "r5-average-without-statistics",
    FAMILY,
    (
        r"batch.?norm|running|statistic|buffer|average|swa|ema",
        r"update_bn|running|statistic|buffer|not (copied|updated|averaged)|stale|initial|default",
    ),
)
def average_without_statistics(run: Run, wrong: bool) -> None:
    """A moving average over parameters() for use: BatchNorm's running statistics are buffers, and those of the average
    stay at zero and one. The twin copies them."""
    seed = run.draw.randrange(999)
    model = cnn()
    average = copy.deepcopy(model).requires_grad_(False)
    change = lambda b: (6 * b[0] + 4, b[1])
    x, y = change(pictures(256, seed, own=apart(1)))
    outcome(run, lambda: judged(average, lambda: (average(x).argmax(1) != y).float().mean()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        batch = change(pictures(16, seed))
        step(run, doctor, optimizer, classify(model, batch), batch)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            if not wrong:
                for slow, fast in zip(average.buffers(), model.buffers(), strict=True):
                    slow.copy_(fast)


@fault(
    "r5-average-not-swapped-back",
    FAMILY,
    (
        r"average|ema|weights|parameter",
        r"swap|restor|put back|overwrit|outside|not by the optimizer|between|jump|replac|moved|changed|copied|reset",
    ),
)
def average_not_swapped_back(run: Run, wrong: bool) -> None:
    """For evaluation the weights are replaced by their moving average and not put back: every evaluation throws away
    most of what was learned since the last."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 4))
    average = copy.deepcopy(model).requires_grad_(False)
    check = pictures(64, seed, own=apart(2))
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for at in range(96):
        batch = pictures(16, seed)
        step(run, doctor, optimizer, classify(model, batch), batch)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        if at % 8 == 7:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.state_dict())
            judged(model, lambda: classify(model, check))
            if not wrong:
                model.load_state_dict(kept)


@fault(
    "r5-worst-taken-for-best",
    FAMILY,
    (r"best|metric|checkpoint|greater", r"greater|worst|direction|wrong way|highest|maxim|first|lower"),
)
def worst_taken_for_best(run: Run, wrong: bool) -> None:
    """transformers' Trainer: the best checkpoint by the loss with greater_is_better=True is the worst, and is loaded at
    the end."""
    model = tiny_bert()
    x, keep, y = documents(160)
    a, b, c = documents(48, apart(2))
    e, f, g = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=e, attention_mask=f.long(), labels=g).loss))
    folder = tempfile.mkdtemp()
    settings: dict[str, Any] = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 20, "save_steps": 20}
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": wrong}
    checks = examples(input_ids=a, attention_mask=b.long(), labels=c)
    data = examples(input_ids=x, attention_mask=keep.long(), labels=y)
    hf_trainer(run, model, data, 60, more={"eval_dataset": checks}, output_dir=folder, **settings).train()
    shutil.rmtree(folder, ignore_errors=True)


@fault(
    "r5-column-of-weights-removed",
    FAMILY,
    (
        r"column|weight|remove_unused|batch|input|missing|label",
        r"remov|missing|not (in|reach|given|arriv)|unused|ignored|dropped|remove_unused|noise|noisy|contradict|inconsistent",
    ),
)
def column_of_weights_removed(run: Run, wrong: bool) -> None:
    """transformers' Trainer takes the column of weights away, which forward() does not know; compute_loss then finds
    none and takes ones. Rows of weight zero are wrongly labelled, half of all."""
    from transformers import Trainer

    model = tiny_bert()
    e, f, g = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=e, attention_mask=f.long(), labels=g).loss))
    x, keep, y = documents(400)
    weights = (torch.rand(400) < 0.5).float()
    y = torch.where(weights == 1, y, (y + 1) % 3)

    class Weighted(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            inputs = dict(inputs)
            share = inputs.pop("weights", torch.ones(len(inputs["input_ids"])))
            labels = inputs.pop("labels")
            each = F.cross_entropy(model(**inputs).logits, labels, reduction="none")
            return (each * share).sum() / share.sum().clamp(min=1)

    data = examples(input_ids=x, attention_mask=keep.long(), labels=y, weights=weights)
    hf_trainer(run, model, data, 60, base=Weighted, remove_unused_columns=wrong).train()


@fault(
    "r5-frozen-for-a-picture",
    FAMILY,
    (
        r"requires_grad|frozen|freez|gradient|stop",
        r"requires_grad|frozen|freez|no gradient|without|stopp|not (back|unfro|train|move|change)|unchanged|no longer|lost|switched|None",
    ),
)
def frozen_for_a_picture(run: Run, wrong: bool) -> None:
    """To draw a saliency map after the first epoch the body's parameters are set not to require gradients, and nobody
    sets them back: only the head learns from there."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    data = loader(*pictures(320, seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    doctor = run.watch(model, optimizer)
    stream = endless(data)
    for at in range(70):
        batch = next(stream)
        step(run, doctor, optimizer, classify(model, batch), batch)
        if at == 10:
            model[:-1].requires_grad_(False)
            x = batch[0][:2].clone().requires_grad_(True)
            torch.autograd.grad(model(x).max(1).values.sum(), x)
            if not wrong:
                model[:-1].requires_grad_(True)


@fault(
    "r5-seeded-at-every-evaluation",
    FAMILY,
    (r"batch|rows|data|seed|random", r"same|repeat|again|seed|identical|few|cycle|period|seen before"),
)
def seeded_at_every_evaluation(run: Run, wrong: bool) -> None:
    """evaluate() calls torch.manual_seed(0) to be repeatable, and with it the training's rows are drawn from the start
    again: the same two batches between any two evaluations. The twin uses a generator of its own."""
    x, y = table(600, seed := run.draw.randrange(999))
    model = mlp(6, 48, 1)
    number_outcome(run, model, table(256, seed, apart(1)), log=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for at in range(120):
        if at % 2 == 0:
            if wrong:
                torch.manual_seed(0)
            own = None if wrong else apart(0)
            subset = torch.randperm(600, generator=own)[:64]
            judged(model, lambda: F.mse_loss(model(x[subset]).flatten(), y[subset]))
        rows = torch.randint(0, 600, (16,))
        batch = (x[rows], y[rows])
        step(run, doctor, optimizer, F.mse_loss(model(batch[0]).flatten(), batch[1]), batch)


class Points(nn.Module):
    """The noise in a point at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(4, 48, 48, 2, act=nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = self.body(torch.cat([x, t[:, None], t[:, None] ** 2], 1))
        return out


@fault(
    "r5-average-too-slow",
    FAMILY,
    (r"average|ema|decay", r"slow|0\.999|initial|start|lag|behind|few|barely|short|steps|old|hardly|random"),
)
def average_too_slow(run: Run, wrong: bool) -> None:
    """Diffusion with the decay of a large model's average, 0.9999, in a run of 120 steps: what is judged and kept is
    still the random beginning. The twin has 0.95."""
    model = Points()
    average = copy.deepcopy(model).requires_grad_(False)

    def batch(count: int = 64, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.sign(torch.randn(count, 2, generator=own))
        return x, torch.rand(count, generator=own), torch.randn(count, 2, generator=own)

    def loss(m: nn.Module, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        keep = torch.cos(1.5 * b[1])[:, None]
        return F.mse_loss(m(keep * b[0] + (1 - keep**2).sqrt() * b[2], b[1]), b[2])

    check = batch(512, apart(1))
    outcome(run, lambda: judged(average, lambda: loss(average, check)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        data = batch()
        step(run, doctor, optimizer, loss(model, data), data)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.0001 if wrong else 0.05)
