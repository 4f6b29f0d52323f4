"""What the model is given to read and to predict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from benchmarks.doctor.data import IGNORED, PAD, rows
from benchmarks.doctor.fault import Exact, Fault, above
from benchmarks.doctor.loop import Batch, Inject, Loop, after
from torch import Tensor

ONSET = 40


def offset(distance: int) -> Inject:
    """Targets `distance` positions ahead of their inputs; 1 is right."""

    def inject(loop: Loop) -> None:
        def shifted(tokens: Tensor, step: int, micro: int) -> Batch:
            first = max(0, -distance)
            last = min(tokens.shape[1] - 1, tokens.shape[1] - distance)
            return tokens[:, first:last], tokens[:, first + distance : last + distance].clone()

        loop.shifted = shifted

    return inject


def other_rows(loop: Loop) -> None:
    """Targets of another row: a collate function that shuffles one side."""
    after(loop, "shifted", lambda made: (made[0], made[1].roll(1, 0)))


def agreement(distance: int) -> Any:
    """Share of targets that are the true next token."""

    def measure(loop: Loop) -> float:
        loop.prepare()
        inputs, targets = loop.batch(0, 0)
        return float((targets[:, :-1] == inputs[:, 1:]).float().mean())

    return measure


def padding_trained(loop: Loop) -> None:
    def unmasked(made: Batch) -> Batch:
        targets = made[1].masked_fill(made[1] == IGNORED, PAD)
        return made[0], targets

    after(loop, "shifted", unmasked)


def end_never_learned(loop: Loop) -> None:
    """Padding has the id of the end of text, and every label of that id is masked."""
    after(loop, "shifted", lambda made: (made[0], made[1].masked_fill(made[1] == PAD, IGNORED)))
    after(loop, "build", declare_padding)


def declare_padding(model: torch.nn.Module) -> None:
    if hasattr(model, "generate"):
        model.config.pad_token_id = model.config.eos_token_id = PAD


def padding_labels(loop: Loop) -> float:
    """Share of the labels that are padding behind the end."""
    loop.prepare()
    inputs, targets = loop.batch(0, 0)
    behind = (inputs == PAD) & (targets != IGNORED)
    return float(behind.sum() / (targets != IGNORED).sum())


def ends(loop: Loop) -> float:
    """Documents whose end is a label, in one batch."""
    loop.prepare()
    inputs, targets = loop.batch(0, 0)
    return float(((inputs != PAD) & (targets == PAD)).sum())


def every(period: int) -> Inject:
    """An iterator that is made anew every `period` steps serves the same batches again."""

    def inject(loop: Loop) -> None:
        loop.tokens = lambda step, micro: Loop.tokens(loop, step % period, micro)

    return inject


def distinct(loop: Loop) -> float:
    """Distinct rows among those of the first 20 steps, as a share."""
    loop.prepare()
    seen = [tuple(row) for step in range(20) for row in loop.batch(step, 0)[0].tolist()]
    return len(set(seen)) / len(seen)


def duplicated_rows(loop: Loop) -> None:
    """Half of the rows of each batch are the other half."""
    after(loop, "tokens", lambda tokens: tokens[: len(tokens) // 2].repeat(2, 1))


def wrapped(bits: int) -> Inject:
    def inject(loop: Loop) -> None:
        after(loop, "tokens", lambda tokens: tokens % 2**bits)

    return inject


def largest_id(loop: Loop) -> float:
    loop.prepare()
    return float(max(int(loop.batch(step, 0)[0].max()) for step in range(5)))


def beyond_vocabulary(loop: Loop) -> None:
    """A special token, added to the tokenizer but not to the model, at the start of some rows."""

    def special(tokens: Tensor) -> Tensor:
        tokens = tokens.clone()
        tokens[::2, 0] = loop.settings.vocab
        return tokens

    after(loop, "tokens", special)


def negative_labels(loop: Loop) -> None:
    """Masked labels are −1 where the loss ignores −100."""

    def masked(made: Batch) -> Batch:
        made[1][:, :4] = -1
        return made

    after(loop, "shifted", masked)


def two_domains(loop: Loop, *, mixed: bool) -> Any:
    def tokens(step: int, micro: int) -> Tensor:
        s, seed = loop.settings, (loop.seed, step, micro)
        code = rows("text", s.vocab, s.rows, s.positions, seed)
        prose = rows("prose", s.vocab, s.rows, s.positions, seed)
        if not mixed:
            return prose if step < ONSET else code
        return torch.where(torch.arange(s.rows)[:, None] % 2 == 0, prose, code)

    return tokens


def in_order(loop: Loop) -> None:
    """All prose first, then all code."""
    loop.tokens = two_domains(loop, mixed=False)


def border(loop: Loop) -> float:
    """Distance of the token histograms before and after the middle, in bits (Jensen–Shannon)."""
    loop.prepare()
    sides = [
        sum(torch.bincount(loop.batch(s, 0)[0].flatten(), minlength=256).double() for s in steps)
        for steps in (range(ONSET - 20, ONSET), range(ONSET, ONSET + 20))
    ]
    p, q = (side / side.sum() for side in sides)
    m = (p + q) / 2
    return float(sum(0.5 * torch.special.xlogy(x, x / m).nansum() for x in (p, q)) / math.log(2))


def corrupt(kind: str) -> Inject:
    """Four steps serve what is not text: uniform ids, one id, or uniform ids in every eighth row."""

    def inject(loop: Loop) -> None:
        def tokens(step: int, micro: int) -> Tensor:
            good = Loop.tokens(loop, step, micro)
            if not ONSET <= step < ONSET + 4:
                return good
            noise = torch.from_numpy(np.random.default_rng((9, step)).integers(0, loop.settings.vocab, good.shape))
            if kind == "row":
                return torch.where(torch.arange(len(good))[:, None] % 8 == 0, noise, good)
            return noise if kind == "noise" else torch.full_like(good, 101)

        loop.tokens = tokens

    return inject


def row_entropy(loop: Loop) -> float:
    """Furthest that a row's entropy in steps 40–43 is from the median of all rows, in bits."""
    loop.prepare()

    def bits(step: int) -> list[float]:
        made = []
        for row in loop.batch(step, 0)[0]:
            p = torch.bincount(row).double() / len(row)
            made.append(float(-torch.special.xlogy(p, p).sum() / math.log(2)))
        return made

    usual = float(np.median([b for step in range(20) for b in bits(step)]))
    return max(abs(b - usual) for step in range(ONSET, ONSET + 4) for b in bits(step))


def no_labels(loop: Loop) -> None:
    """Truncation removed the answers: from step 40 on, some micro-batches have no label, and each is averaged alone."""

    def empty(made: Batch) -> Batch:
        if loop.number >= ONSET and loop.number % 2 == 0:
            made[1].fill_(IGNORED)
        return made

    after(loop, "shifted", empty)
    loop.loss = lambda logits, batch: torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch[1].flatten(), ignore_index=IGNORED
    )


def losses_not_numbers(loop: Loop) -> float:
    try:
        loop.run()
    except (IndexError, RuntimeError):
        return math.inf
    return float(sum(not math.isfinite(x) for x in loop.losses))


def doubled_start(loop: Loop) -> None:
    """The template writes the start token, and so does the tokenizer."""

    def doubled(tokens: Tensor) -> Tensor:
        return torch.cat((torch.full((len(tokens), 2), 1), tokens[:, :-2]), 1)

    after(loop, "tokens", doubled)


def starts(loop: Loop) -> float:
    loop.prepare()
    inputs = loop.batch(0, 0)[0]
    return float((inputs[:, 0] == inputs[:, 1]).float().mean())


def not_next(threshold: float = 0.9) -> Exact:
    return Exact("share of targets that are the next token", agreement(1), lambda bad, good: bad < threshold < good)


REPEATS = Exact("share of distinct rows in 20 steps", distinct, lambda bad, good: bad < 0.6 < good)
NOT_TEXT = Exact("row entropy, furthest from the usual, bits", row_entropy, lambda bad, good: bad > 1.3 * good)
MISALIGNED = ("labels-misaligned",)
DOCUMENTS = {"labels": "documents"}
WORDS = {"vocab": 4096, "width": 32, "blocks": 2, "heads": 1, "steps": 40}

FAULTS = (
    Fault("DAT-01", "targets are the inputs", offset(0), ("labels-not-shifted",), not_next()),
    Fault("DAT-01 twice", "targets shifted twice", offset(2), MISALIGNED, not_next()),
    Fault("DAT-01 back", "targets are the previous token", offset(-1), MISALIGNED, not_next()),
    Fault("DAT-01 rows", "targets of another row", other_rows, ("targets-unrelated",), not_next()),
    Fault("DAT-02", "padding is trained on", padding_trained, ("padding-trained-on",),
          Exact("share of the labels behind the end", padding_labels, above(0.01)), DOCUMENTS),
    Fault("DAT-02 end", "end of text masked together with the padding", end_never_learned,
          ("end-never-a-label", "stop-not-learned"),
          Exact("documents whose end is a label", ends, lambda bad, good: bad == 0 < good), DOCUMENTS),
    Fault("DAT-03", "the same batch every step", every(1), ("batch-repeats",), REPEATS),
    Fault("DAT-03 few", "the same eight batches again and again", every(8), ("batch-repeats",), REPEATS),
    Fault("DAT-03 rows", "every row twice in its batch", duplicated_rows, ("rows-duplicated",), REPEATS),
    Fault("DAT-04", "ids of 4096 words kept in 8 bits", wrapped(8), ("ids-wrapped",),
          Exact("largest id in five batches", largest_id, lambda bad, good: bad < 256 < good), WORDS),
    Fault("DAT-04 special", "an id beyond the vocabulary", beyond_vocabulary, ("ids-out-of-range",),
          Exact("losses that are not a number, or a crash", losses_not_numbers, above(0)), {"steps": 10}),
    Fault("DAT-04 ignore", "masked labels are −1, ignored ones −100", negative_labels, ("ids-out-of-range",),
          Exact("losses that are not a number, or a crash", losses_not_numbers, above(0)), {"steps": 10}),
    Fault("DAT-05", "prose first, then code", in_order, ("data-sorted",),
          Exact("distance of neighbouring token histograms, bits", border, lambda bad, good: bad > 5 * good),
          onset=ONSET),
    Fault("DAT-06", "four batches of uniform ids", corrupt("noise"), ("corrupt-batch",), NOT_TEXT, onset=ONSET),
    Fault("DAT-06 one", "four batches of one id", corrupt("one"), ("corrupt-batch",), NOT_TEXT, onset=ONSET),
    Fault("DAT-06 row", "uniform ids in one row of four batches", corrupt("row"), ("corrupt-batch",), NOT_TEXT,
          onset=ONSET),
    Fault("DAT-07", "micro-batches without a label, averaged", no_labels, ("no-labels",),
          Exact("losses that are not a number", losses_not_numbers, above(0)), {"steps": 50}, onset=ONSET),
    Fault("DAT-08", "two start tokens in every row", doubled_start, ("doubled-bos",),
          Exact("share of rows that begin with a pair", starts, above(0.9))),
)  # fmt: skip
