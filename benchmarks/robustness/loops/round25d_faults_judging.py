"""Round 25d, mistakes in how a run is judged, stopped and sampled from while it goes on."""

import copy
from typing import Any

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
    language_outcome,
    loader,
    mlp,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify
from benchmarks.robustness.loops.round7b_parts import Listener, SmallLlama, Translator, sounds
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round8b_parts import steps, translated, word_table
from benchmarks.robustness.loops.round25d_parts import (
    Book,
    Denoiser,
    Letters,
    Levels,
    engine_of,
    in_turn,
    lit_then,
    moons,
    motion_net,
    motions,
    slip,
    spirals,
    told,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r25d-only-the-levels-of-the-sampler")
def only_the_levels_of_the_sampler(run: Run, wrong: bool) -> None:
    """Plain loop, a diffusion of points in the plane. Every thirty steps a few points are drawn to look at, in ten of
    the hundred levels; the object that holds the levels in use is the one that training draws from, and from the first
    look on only these ten are learned. The twin draws with an object of its own. Judged by the error of the noise over
    all levels."""
    levels = Levels()
    for_samples = levels if wrong else Levels()
    net = Denoiser()
    own = apart(1)
    x, noise, level = moons(1000, own), torch.randn(1000, 2, generator=own), torch.arange(1000) % 100
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(levels.noised(x, noise, level), level), noise)))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        drawn = levels.used[torch.randint(0, len(levels.used), (128,))]
        return moons(128), torch.randn(128, 2), drawn

    def loss(m: nn.Module, rows: Any) -> Tensor:
        points, noise, level = rows
        return F.mse_loss(m(levels.noised(points, noise, level), level), noise)

    @torch.no_grad()
    def look(step: int) -> None:
        if step % 30 != 29:
            return
        for_samples.use(10)
        points = torch.randn(32, 2)
        chain = for_samples.used.flip(0).tolist()
        for now, then in zip(chain, [*chain[1:], None], strict=True):
            found = net(points, torch.full((32,), now))
            keep = for_samples.keeps[now]
            clean = (points - (1 - keep).sqrt() * found) / keep.sqrt()
            keep = torch.tensor(1.0) if then is None else for_samples.keeps[then]
            points = keep.sqrt() * clean + (1 - keep).sqrt() * found

    steps(run, net, adam(net, 3e-3), batch, loss, 150, after=look)


@slip("r25d-every-bad-check-is-remembered")
def every_bad_check_is_remembered(run: Run, wrong: bool) -> None:
    """Plain loop, convolutions over noisy sounds, stopped when they have not become better at eight checks in a row.
    The count of such checks is not set back when there is a better one: it stops at the eighth in all. The twin sets it
    back. The best weights are put back in. Judged on other sounds."""
    net = Listener()
    check = sounds(384, apart(1), 1.0)
    outcome(run, lambda: judged(net, lambda: classify(net, check).log()))
    validation = sounds(48, noise=1.0)
    batches = endless(loader(*sounds(960, noise=1.0)))
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    least, best, without = float("inf"), copy.deepcopy(net.state_dict()), 0
    for step in range(1, 151):
        batch = next(batches)
        told(run, doctor, optimizer, classify(net, batch), batch)
        if step % 2:
            continue
        found = judged(net, lambda: classify(net, validation))
        if found < least:
            least, best = found, copy.deepcopy(net.state_dict())
            if not wrong:
                without = 0
        else:
            without += 1
            if without == 8:
                break
    net.load_state_dict(best)


@slip("r25d-smoothed-from-nought")
def smoothed_from_nought(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions over movements, stopped by a smoothed validation loss. The smoothing begins
    at nought: the smoothed loss rises towards the true one, the first check is the best there is, and after three more
    training ends. The twin begins at the first loss. The best weights are put back in. Judged on other movements."""
    from transformers import TrainerCallback

    seed = run.draw.randrange(999)
    net = WithLoss(motion_net(), F.cross_entropy)
    x, y = motions(384, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: net(x, y)["loss"]))

    class Stopping(TrainerCallback):  # type: ignore[misc]
        smooth: float | None = 0.0 if wrong else None
        least, without = float("inf"), 0
        best: Any = None

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **given: Any) -> None:
            found = metrics["eval_loss"]
            self.smooth = found if self.smooth is None else 0.8 * self.smooth + 0.2 * found
            if self.smooth < self.least:
                self.least, self.without = self.smooth, 0
                self.best = copy.deepcopy(net.state_dict())
            else:
                self.without += 1
                control.should_training_stop |= self.without == 3

    stopping = Stopping()
    more: dict[str, Any] = {"eval_dataset": examples(**dict(zip(("x", "labels"), motions(96, seed), strict=True)))}
    often: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 10, "learning_rate": 3e-3}
    data = examples(**dict(zip(("x", "labels"), motions(640, seed), strict=True)))
    hf_trainer(run, net, data, 120, more=more | {"callbacks": [stopping]}, **often).train()
    net.load_state_dict(stopping.best)


@slip("r25d-nothing-left-to-judge")
def nothing_left_to_judge(run: Run, wrong: bool) -> None:
    """Lightning, a small translator, and the weights with the least validation loss, asked every twenty steps. The
    validation batches are a generator that is made once and empty after the first time: the second mean is nought, and
    nothing is ever better. The twin makes it anew. The best weights are put back in. Judged on other rows."""
    seed = run.draw.randrange(999)
    mapping = word_table(seed)
    net = Translator(14)

    def rows_of(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        rows = translated(count, mapping, own)
        return rows["input_ids"], rows["labels"]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        source, target = batch
        shown = torch.cat([torch.full((len(target), 1), 14), target[:, :-1]], 1)
        return F.cross_entropy(m(source, shown).flatten(0, 1), target.flatten())

    check = rows_of(256, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    kept = loader(*rows_of(96), size=32, shuffle=False)
    batches = (batch for batch in kept)
    least, best = float("inf"), copy.deepcopy(net.state_dict())

    def validate(step: int) -> None:
        nonlocal least, best
        if step % 20:
            return
        total, count = 0.0, 0
        for batch in batches if wrong else (batch for batch in kept):
            total += judged(net, lambda: loss(net, batch))  # noqa: B023
            count += 1
        if (found := total / max(count, 1)) < least:
            least, best = found, copy.deepcopy(net.state_dict())

    fit(run, lit_then(net, loss, lambda m: adam(m, 5e-3), validate), loader(*rows_of(960)), 140)
    net.load_state_dict(best)


@slip("r25d-body-of-the-best-head-of-the-last")
def body_of_the_best_head_of_the_last(run: Run, wrong: bool) -> None:
    """accelerate, an LSTM that learns from few texts, kept where the validation loss is least. Of the best weights only
    the body's are kept and put back: they come together with the head of the last step. The twin keeps both. Judged by
    the cross-entropy of other texts."""
    net = Letters()
    class_outcome(run, net, in_turn(512, apart(1)))
    validation = in_turn(128)
    engine = engine_of()
    model, optimizer, data = engine.prepare(net, adam(net, 1e-2), loader(*in_turn(80)))
    keeps: nn.Module = nn.ModuleDict({"words": net.words, "core": net.core}) if wrong else net
    doctor = run.watch(model, optimizer)
    least, best = float("inf"), copy.deepcopy(keeps.state_dict())
    for _ in range(28):
        for batch in data:
            optimizer.zero_grad()
            value = classify(model, batch)
            engine.backward(value)
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)
        if (found := judged(net, lambda: classify(net, validation))) < least:
            least, best = found, copy.deepcopy(keeps.state_dict())
    keeps.load_state_dict(best)


@slip("r25d-asks-what-it-is-sure-of")
def asks_what_it_is_sure_of(run: Run, wrong: bool) -> None:
    """Plain loop, a small network that may ask for labels of twelve rows every ten steps. It should ask where its first
    and second guess are nearest to one another and asks where they are farthest apart. The twin asks for the smallest
    margins. Judged by the share of wrong answers on other points."""
    net = mlp(2, 48, 48, 3)
    check, answers = spirals(768, apart(1))
    outcome(run, lambda: judged(net, lambda: (net(check).argmax(1) != answers).float().mean()))
    x, y = spirals(800)
    known = torch.zeros(800, dtype=torch.bool)
    known[:24] = True

    def batch() -> tuple[Tensor, Tensor]:
        rows = known.nonzero().squeeze(1)
        rows = rows[torch.randint(0, len(rows), (24,))]
        return x[rows], y[rows]

    @torch.no_grad()
    def ask(step: int) -> None:
        if step % 10 != 9:
            return
        rows = (~known).nonzero().squeeze(1)
        best, second = net(x[rows]).softmax(1).topk(2).values.T
        known[rows[(best - second).topk(12, largest=wrong).indices]] = True

    steps(run, net, adam(net, 1e-2), batch, classify, 150, after=ask)


@slip("r25d-each-validation-begins-the-book-again")
def each_validation_begins_the_book_again(run: Run, wrong: bool) -> None:
    """Plain loop, a small Llama that reads rows of a text in order. One object reads what is learned and what is judged
    by, with one place for both: each validation begins at row nought and leaves the place where it ends, and only the
    first rows are ever learned. The twin has a place for each. Judged on other texts."""
    language = Language(run.draw.randrange(999))
    net = SmallLlama(12)
    language_outcome(run, net, language)
    book = Book(language.rows(640, 16), language.rows(64, 16), one_place=wrong)

    def validate(step: int) -> None:
        if step % 6 == 5:
            book.begin("judge")
            for _ in range(3):
                judged(net, lambda: next_loss(net, book.read("judge")))

    steps(run, net, adam(net, 5e-3), lambda: book.read("learn"), next_loss, 120, after=validate)
