"""Round 21, part b: mistakes of drawing, teaching and judging inside the loop."""

import copy

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    fit,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome, update
from benchmarks.robustness.loops.round10a_tools import tuned
from benchmarks.robustness.loops.round21b_parts import Remembering, driven, expert, slip, swings
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r21b-kept-keys-and-place-nought")
def kept_keys_and_place_nought(run: Run, wrong: bool) -> None:
    """Plain loop, a decoder learns from the best of its own answers. Where it goes on from kept keys and values it is
    given one word at a time, and numbers places by the words it is given: each is at place nought. The twin counts on
    from those kept."""
    own = apart(run.draw.randrange(999))
    turned = torch.randperm(8, generator=own)
    net = Remembering(9, from_nought=wrong)

    def asked(count: int, own: torch.Generator) -> Tensor:
        return torch.cat([torch.randint(0, 8, (count, 4), generator=own), torch.full((count, 1), 8)], 1)

    def answered(count: int, own: torch.Generator) -> Tensor:
        rows = asked(count, own)
        return torch.cat([rows, turned[rows[:, :4]]], 1)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(m(rows[:, :-1])[:, 4:].flatten(0, 1), rows[:, 5:].flatten())

    tuned(net, lambda: answered(16, own), lambda rows: loss(net, rows), 120, 5e-3)
    check = answered(256, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    optimizer = adam(net, 1e-3)
    doctor = run.watch(net, optimizer)
    for _ in range(80):
        prompts = asked(24, own)
        four = net.answers(prompts.repeat_interleave(4, 0), 4).view(24, 4, 9)
        right = (four[:, :, 5:] == turned[prompts[:, None, :4]]).sum(2)
        best = four[torch.arange(24), right.argmax(1)]
        update(run, doctor, optimizer, loss(net, best), best)


@slip("r21b-kept-what-it-did")
def kept_what_it_did(run: Run, wrong: bool) -> None:
    """Plain loop, a pupil drives a cart and is corrected by an expert. Where the expert's word should be kept beside
    each state, what was done there is kept, and that is the pupil's own push. The twin keeps what the expert says."""
    own = apart(run.draw.randrange(999))
    net = mlp(2, 32, 32, 1)
    start = torch.randn(64, 2, generator=apart(1)) * torch.tensor([1.0, 0.5])

    def cost() -> Tensor:
        state, total = start, torch.zeros(())
        for _ in range(25):
            state = driven(state, net(state).squeeze(1)).clamp(-5, 5)
            total = total + state.square().sum(1).mean() / 25
        return total

    outcome(run, lambda: judged(net, cost))
    first = 0.3 * torch.randn(12, 2, generator=own)
    states, pushes = [first], [expert(first)]
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    for step in range(120):
        if step and step % 10 == 0:
            state = torch.randn(6, 2, generator=own) * torch.tensor([1.0, 0.5])
            for _ in range(12):
                with torch.no_grad():
                    done = net(state).squeeze(1).clamp(-2, 2)
                states.append(state)
                pushes.append(done if wrong else expert(state))
                state = driven(state, done).clamp(-5, 5)
        x, y = torch.cat(states), torch.cat(pushes)
        some = torch.randint(0, len(x), (32,), generator=own)
        update(run, doctor, optimizer, F.mse_loss(net(x[some]).squeeze(1), y[some]), (x[some], y[some]))


@slip("r21b-each-step-from-the-truth")
def each_step_from_the_truth(run: Run, wrong: bool) -> None:
    """Lightning, a network that steps a pendulum on, to be taught by running six steps ahead from one reading. Each
    step begins at the reading of its time, and not at what the network made of the last: it never runs by itself. The
    twin goes on from its own state."""
    net = mlp(2, 48, 48, 2, act=nn.Tanh)
    clean = swings(64, 21, apart(1), 0.0)

    def apart_after() -> Tensor:
        state, total = clean[:, 0], torch.zeros(())
        for place in range(1, 21):
            state = state + net(state)
            total = total + F.mse_loss(state, clean[:, place]) / 20
        return total

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        read = batch[0]
        state, total = read[:, 0], torch.zeros(())
        for place in range(1, 7):
            begin = read[:, place - 1] if wrong else state
            state = begin + m(begin)
            total = total + F.mse_loss(state, read[:, place]) / 6
        return total

    outcome(run, lambda: judged(net, apart_after))
    rows = loader(swings(960, 7, apart(run.draw.randrange(999)), 0.5), size=32)
    fit(run, lit(net, loss, lambda m: adam(m, 1e-2)), rows, 150)


@slip("r21b-judged-by-the-last-three")
def judged_by_the_last_three(run: Run, wrong: bool) -> None:
    """Plain loop with an evaluation every five steps, after which the best weights so far are kept, to be put back at
    the end. The evaluation goes through five batches in a drawn order and keeps the last one's
    loss, of three rows. The twin takes the mean over all rows."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    net = mlp(16, 64, 64, 3)
    aim = torch.randn(16, 3, generator=own) * (torch.arange(16) < 4)[:, None]

    def rows(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 16, generator=own)
        told = torch.randint(0, 3, (count,), generator=own)
        return x, torch.where(torch.rand(count, generator=own) < 0.3, told, (x @ aim).argmax(1))

    x, y = rows(128)
    kept_apart = rows(67)
    class_outcome(run, net, rows(1024))
    optimizer = adam(net, 5e-3)
    doctor = run.watch(net, optimizer)
    best, weights = float("inf"), copy.deepcopy(net.state_dict())
    for step in range(120):
        some = torch.randint(0, 128, (32,))
        update(run, doctor, optimizer, F.cross_entropy(net(x[some]), y[some]), (x[some], y[some]))
        if step % 5 == 4:
            net.eval()
            total = 0.0
            with torch.no_grad():
                for a, b in loader(*kept_apart):
                    value = F.cross_entropy(net(a), b)
                    total = float(value) if wrong else total + float(value) * len(b) / 67
            net.train()
            if total < best:
                best, weights = total, copy.deepcopy(net.state_dict())
    net.load_state_dict(weights)


@slip("r21b-teacher-given-the-pupils-pixels")
def teacher_given_the_pupils_pixels(run: Run, wrong: bool) -> None:
    """accelerate, a small network is taught by a larger one. The teacher was trained on pictures less their mean and
    over their spread, the pupil reads them between nought and one, and the teacher is given what the pupil reads. The
    twin brings them to the teacher's form first."""
    seed = run.draw.randrange(999)
    teacher, pupil = cnn(), nn.Sequential(nn.Flatten(), mlp(64, 32, 4))

    def for_teacher(x: Tensor) -> Tensor:
        return (x - 0.5) / 0.3

    def lesson(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(teacher(for_teacher(batch[0])), batch[1])

    tuned(teacher, lambda: pictures(32, seed), lesson, 60)
    teacher.eval().requires_grad_(False)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        told = teacher(batch[0] if wrong else for_teacher(batch[0])) / 2
        return 4 * F.kl_div(
            (m(batch[0]) / 2).log_softmax(1), told.log_softmax(1), log_target=True, reduction="batchmean"
        )

    class_outcome(run, pupil, pictures(256, seed, own=apart(1)))
    prepared(run, pupil, adam(pupil), loader(pictures(480, seed)[0]), loss, 4)


@slip("r21b-teacher-sees-another-mixture")
def teacher_sees_another_mixture(run: Run, wrong: bool) -> None:
    """Lightning, a small network is taught by a larger one on mixtures of two pictures each. The function that mixes
    draws partners and shares at each call, and is called once for the teacher and once for the pupil: the answers are
    to other mixtures than the pupil sees. The twin mixes once and shows both the same."""
    seed = run.draw.randrange(999)
    teacher, pupil = cnn(), nn.Sequential(nn.Flatten(), mlp(64, 48, 4))

    def mixed(x: Tensor) -> Tensor:
        share = 0.5 * torch.rand(len(x), 1, 1, 1)
        return (1 - share) * x + share * x[torch.randperm(len(x))]

    def lesson(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(teacher(batch[0]), batch[1])

    tuned(teacher, lambda: pictures(32, seed), lesson, 60)
    teacher.eval().requires_grad_(False)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        shown = mixed(batch[0])
        told = teacher(mixed(batch[0]) if wrong else shown)
        return F.kl_div(m(shown).log_softmax(1), told.log_softmax(1), log_target=True, reduction="batchmean")

    class_outcome(run, pupil, pictures(256, seed, own=apart(1)))
    fit(run, lit(pupil, loss, lambda m: adam(m)), loader(pictures(480, seed)[0], size=32), 120)


@slip("r21b-guesses-a-place-early")
def guesses_a_place_early(run: Run, wrong: bool) -> None:
    """accelerate, a decoder is to get used to its own words: a first pass guesses, and in the second, half the
    words that go in are guesses. A guess stands where the word before it was read, and is put in there, a place before
    its own. The twin moves guesses on by one."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12)
    text_outcome(run, net, language)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        rows = batch[0]
        with torch.no_grad():
            logits = m(rows[:, :-1])
            guesses = torch.multinomial(logits.flatten(0, 1).softmax(1), 1).view(logits.shape[:2])
        if not wrong:
            guesses = torch.cat([rows[:, :1], guesses[:, :-1]], 1)
        shown = torch.where(torch.rand(guesses.shape) < 0.5, guesses, rows[:, :-1])
        return F.cross_entropy(m(shown).flatten(0, 1), rows[:, 1:].flatten())

    rows = loader(language.rows(640, 24, apart(run.draw.randrange(999))))
    prepared(run, net, adam(net), rows, loss, 3)
