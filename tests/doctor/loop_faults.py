"""Mistakes planted in a training loop, each with the rule that names it and the step by which it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from doctor.bench import VOCAB, Loop, batch, groups, mean_loss, warm


def no_clear(loop: Loop) -> None:
    loop.clear = lambda: None


def cleared_too_early(loop: Loop) -> None:
    loop.clip = lambda: loop.optimizer.zero_grad()


def set_to_zero(loop: Loop) -> None:
    loop.clip = lambda: loop.optimizer.zero_grad(set_to_none=False)


def clip_nothing(loop: Loop) -> None:
    spent = loop.model.parameters()
    list(spent)
    loop.clip = lambda: torch.nn.utils.clip_grad_norm_(spent, 1e-3)


def schedule_first(loop: Loop) -> None:
    def step() -> tuple[float, list[Any]]:
        given = loop.batch(loop.number)
        loss = loop.loss(given)
        loss.backward()
        loop.scheduler.step()
        loop.optimizer.step()
        loop.clear()
        return float(loss.detach()), [given]

    loop.step = step


def too_low(loop: Loop) -> None:
    loop.optimizer = torch.optim.AdamW(groups(loop.model), lr=1e-10)
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, warm)


def restored(loop: Loop) -> None:
    first = {name: tensor.clone() for name, tensor in loop.model.state_dict().items()}
    loop.clear = lambda: (loop.optimizer.zero_grad(), loop.model.load_state_dict(first))


def same_batch(loop: Loop) -> None:
    loop.batch = lambda number: batch(0)


def schedule_in_the_inner_loop(loop: Loop) -> None:
    def backward(loss: Tensor) -> None:
        loss.backward()
        loop.scheduler.step()

    loop.backward = backward


def eval_mode(loop: Loop) -> None:
    for block in loop.model.blocks:
        block.dropout.p = 0.1

    def step() -> tuple[float, list[Any]]:
        if loop.number == 5:
            loop.model.eval()
        return Loop.step(loop)

    loop.step = step


def uneven(loop: Loop) -> None:
    def some(number: int) -> Any:
        x, y = batch(number)
        kept = 2 if number % 2 else 20
        return x, y.index_fill(1, torch.arange(kept, y.shape[1]), -100)

    loop.batch = some


def not_divided(loop: Loop) -> None:
    loop.loss = lambda given: mean_loss(loop.model, given)


def noise(loop: Loop) -> None:
    def some(number: int) -> Any:
        x, y = batch(number)
        return (torch.full_like(x, 7), torch.full_like(y, 7)) if 30 <= number < 33 else (x, y)

    loop.batch = some


def sorted_data(loop: Loop) -> None:
    def some(number: int) -> Any:
        x, y = batch(number)
        return (x // 2, y // 2) if number < 20 else (x, y)

    loop.batch = some


def stepped_twice(loop: Loop) -> None:
    loop.clip = lambda: loop.optimizer.step()


def not_normalised(loop: Loop) -> None:
    loop.loss = lambda given: F.nll_loss(loop.model(given[0]).flatten(0, 1), given[1].flatten())


def smoothed(loop: Loop) -> None:
    def loss(given: Any) -> Tensor:
        return F.cross_entropy(loop.model(given[0]).flatten(0, 1), given[1].flatten(), label_smoothing=0.9)

    loop.loss = loss


def compared_with_itself(loop: Loop) -> None:
    """Direct preference optimisation whose reference is the policy."""

    def loss(given: Any) -> Tensor:
        logits = loop.model(given[0]).log_softmax(-1)
        likely = logits.gather(-1, given[1][..., None])[..., 0].sum(-1)
        good, bad = (likely - likely.detach()).chunk(2)
        return -F.logsigmoid(0.1 * (good - bad)).mean()

    loop.loss = loss


def regressed_on_itself(loop: Loop) -> None:
    """A margin over a target that is the model's own loss of the moment."""

    def loss(given: Any) -> Tensor:
        own = F.cross_entropy(loop.model(given[0]).flatten(0, 1), given[1].flatten())
        return F.relu(2.0 + own - own.detach())

    loop.loss = loss


def divergence_of_probabilities(loop: Loop) -> None:
    def loss(given: Any) -> Tensor:
        taught = F.one_hot(given[1].flatten(), VOCAB).float() * 0.9 + 0.1 / VOCAB
        return F.kl_div(loop.model(given[0]).flatten(0, 1).softmax(-1), taught, reduction="batchmean")

    loop.loss = loss


def sigmoid_twice(loop: Loop) -> None:
    def loss(given: Any) -> Tensor:
        present = F.one_hot(given[1], VOCAB).amax(1).float()
        return F.binary_cross_entropy_with_logits(loop.model(given[0]).amax(1).sigmoid(), present)

    loop.loss = loss


def clipped_to_nothing(loop: Loop) -> None:
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.5)
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1.0)
    loop.clip = lambda: torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 2e-3)


def only_the_head_has_a_gradient(loop: Loop) -> None:
    """The loop calls parts of the model, the trunk without gradients."""
    model = loop.model

    def loss(given: Any) -> Tensor:
        with torch.no_grad():
            x = model.tokens(given[0]) + model.places(torch.arange(given[0].shape[1]))
            for block in model.blocks:
                x = block(x)
        return F.cross_entropy(model.head(model.norm(x)).flatten(0, 1), given[1].flatten())

    loop.loss = loss


def made_anew(loop: Loop) -> None:
    """The optimizer is made inside the loop over epochs of three steps."""
    current = [loop.optimizer]

    def step() -> tuple[float, list[Any]]:
        if loop.number and loop.number % 3 == 0:
            current[0] = torch.optim.AdamW(loop.model.parameters(), lr=3e-3)
        given = loop.batch(loop.number)
        loss = loop.loss(given)
        current[0].zero_grad()
        loss.backward()
        current[0].step()
        return float(loss.detach()), [given]

    loop.step = step


def a_word_is_ignored(loop: Loop) -> None:
    """Word 3 is every fourth of the text, and what the loss ignores."""

    def some(number: int) -> Any:
        x, y = batch(number)
        often = torch.rand(len(x), x.shape[1] + 1, generator=torch.Generator().manual_seed(number)) < 0.25
        ids = torch.cat([x, y[:, -1:]], 1).masked_fill(often, 3)
        return ids[:, :-1], ids[:, 1:]

    loop.batch = some
    loop.loss = lambda given: F.cross_entropy(loop.model(given[0]).flatten(0, 1), given[1].flatten(), ignore_index=3)


FAULTS: list[tuple[Callable[[Loop], None], str, int, int]] = [
    (no_clear, "gradients-not-cleared", 1, 3),
    (cleared_too_early, "step-without-gradients", 1, 3),
    (set_to_zero, "step-without-gradients", 1, 3),
    (clip_nothing, "clipping-misses-parameters", 1, 3),
    (schedule_first, "schedule-before-update", 1, 4),
    (too_low, "learning-rate-too-low", 1, 4),
    (restored, "weights-never-change", 1, 4),
    (stepped_twice, "stepped-twice", 1, 2),
    (same_batch, "batch-repeats", 1, 4),
    (schedule_in_the_inner_loop, "schedule-per-micro-batch", 4, 5),
    (eval_mode, "trained-in-eval-mode", 1, 7),
    (uneven, "loss-mean-of-means", 2, 1),
    (not_divided, "accumulation-not-divided", 2, 1),
    (noise, "corrupt-batch", 1, 33),
    (sorted_data, "data-sorted", 1, 42),
    (a_word_is_ignored, "token-never-a-label", 1, 3),
    (not_normalised, "probabilities-to-loss", 1, 1),
    (smoothed, "loss-formula-unusual", 1, 1),
    (compared_with_itself, "reference-not-fixed", 1, 6),
    (regressed_on_itself, "loss-constant", 1, 12),
    (divergence_of_probabilities, "probabilities-to-loss", 1, 1),
    (sigmoid_twice, "probabilities-to-loss", 1, 1),
    (clipped_to_nothing, "clipped-every-step", 1, 70),
    (only_the_head_has_a_gradient, "gradient-cut", 1, 20),
    (made_anew, "optimizer-made-anew", 1, 7),
]
