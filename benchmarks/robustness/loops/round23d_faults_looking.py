"""Round 23d, mistakes where a loop looks at itself: validation, modes, sampling, decoding, what is kept."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round23d_parts import (
    Captions,
    Denoiser,
    Pictured,
    accelerated,
    captioned,
    elbo,
    slip,
    written,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23d-validation-sets-the-seed")
def validation_sets_the_seed(run: Run, wrong: bool) -> None:
    """accelerate, an MLP that says what noise is in a picture. Validation after each epoch begins with a seed, so that
    its noise is the same, and leaves the generator so: from the second epoch on times, noise and order of rows are
    those of the epoch before. The twin puts the generator's state back. Judged with other noise on other pictures."""
    seed = run.draw.randrange(999)
    net = Denoiser()

    def noised(m: nn.Module, x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        share = time[:, None]
        return F.mse_loss(m((1 - share).sqrt() * x + share.sqrt() * noise, time), noise)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x = batch[0]
        return noised(m, x, 0.05 + 0.9 * torch.rand(len(x)), torch.randn_like(x))

    def flat(count: int, own: torch.Generator | None = None) -> Tensor:
        return 2 * pictures(count, seed, own=own)[0].flatten(1) - 1

    own = apart(1)
    check = flat(512, own)
    time, noise = 0.05 + 0.9 * torch.rand(512, generator=own), torch.randn(512, 64, generator=own)
    outcome(run, lambda: judged(net, lambda: noised(net, check, time, noise)))
    kept = flat(64)
    validated = []

    def validate() -> None:
        state = torch.get_rng_state()
        torch.manual_seed(0)
        validated.append(judged(net, lambda: loss(net, [kept])))
        if not wrong:
            torch.set_rng_state(state)

    accelerated(run, net, adam(net, 2e-3), loader(flat(128)), loss, 18, validate)


@slip("r23d-every-validation-adds-to-the-last")
def every_validation_adds_to_the_last(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM for texts. After each epoch the losses of validation are added up, and the sum begins once
    and not anew each time: the first epoch's is the least for ever. After two epochs without a better one the best
    weights are taken back and the rate is halved: so training begins again from the first epoch's weights, again and
    again. The twin's sum begins at nought each time. Judged by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999))
    net = Reader(12, core=nn.LSTM)
    language_outcome(run, net, language)
    data, kept = loader(language.rows(160, 24)), loader(language.rows(64, 24), shuffle=False)
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    best, best_weights, waited, total = float("inf"), copy.deepcopy(net.state_dict()), 0, 0.0
    for _ in range(12):
        net.train()
        for batch in data:
            optimizer.zero_grad()
            value = next_loss(net, batch[0])
            value.backward()
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)
        net.eval()
        if not wrong:
            total = 0.0
        with torch.no_grad():
            for (rows,) in kept:
                total += float(next_loss(net, rows))
        if total < best:
            best, best_weights, waited = total, copy.deepcopy(net.state_dict()), 0
        else:
            waited += 1
        if waited == 2:
            net.load_state_dict(best_weights)
            optimizer.param_groups[0]["lr"] /= 2
            waited = 0
    net.load_state_dict(best_weights)


@slip("r23d-drawn-only-when-it-does-not-learn")
def drawn_only_when_it_does_not_learn(run: Run, wrong: bool) -> None:
    """Lightning, a variational autoencoder of small pictures. Latent numbers are drawn in evaluation mode and are their
    means in training mode, where it should be the other way round: the decoder never learns to bear the spread. The
    twin draws in training mode. Judged by the bound with drawn latent numbers on other pictures."""
    seed = run.draw.randrange(999)
    net = Pictured(noisy=not wrong)
    own = apart(1)
    check = pictures(384, seed, own=own)[0].flatten(1)
    noise = torch.randn(384, 8, generator=own)

    def bound() -> Tensor:
        mean, log_variance = net.latent(check)
        return elbo(net, check, net.decoder(mean + (log_variance / 2).exp() * noise), mean, log_variance)

    outcome(run, lambda: judged(net, bound))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return elbo(net, batch[0], *m(batch[0]))

    fit(run, lit(net, loss, lambda m: adam(m, 2e-3)), loader(pictures(640, seed)[0].flatten(1)), 120)


@slip("r23d-best-answers-kept-without-their-end")
def best_answers_kept_without_their_end(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that should say as many words as it is asked for, and learns from the best of its own answers.
    Which words of an answer count is found by counting ends up to each place, and the end itself is left out: it is
    never taught when to stop. The twin counts ends before a place. Judged by how far from what was asked answers
    end."""
    net = Reader(8)
    end, longest = 0, 8

    def answered(asked: Tensor, own: torch.Generator | None = None) -> Tensor:
        """(rows, longest) words 0 to 3 behind a first one 4 to 7, that asks for one to four."""
        ids = asked[:, None] + 3
        for _ in range(longest):
            chances = net(ids)[:, -1, :4].softmax(1)
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=own)], 1)
        return ids[:, 1:]

    def words_said(answers: Tensor) -> Tensor:
        return ((answers == end).cumsum(1) == 0).sum(1)

    check = torch.arange(1, 5).repeat(64)

    def far() -> Tensor:
        return (words_said(answered(check, apart(2))) - check).abs().float().mean()

    outcome(run, lambda: judged(net, far))
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    for _ in range(120):
        asked = torch.randint(1, 5, (16,))
        with torch.no_grad():
            tried = answered(asked.repeat_interleave(4)).view(16, 4, longest)
        misses = (words_said(tried.flatten(0, 1)).view(16, 4) - asked[:, None]).abs()
        best = tried[torch.arange(16), misses.argmin(1)]
        ends = (best == end).long()
        counts = ends.cumsum(1) if wrong else ends.cumsum(1) - ends
        mask = (counts == 0).float()
        ids = torch.cat([asked[:, None] + 3, best], 1)
        scores = net(ids[:, :-1])[..., :4]
        each = F.cross_entropy(scores.flatten(0, 1), best.flatten(), reduction="none").view_as(mask)
        value = (each * mask).sum() / mask.sum().clamp_min(1)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        doctor.step(value, (ids, mask))
        run.note(value)


@slip("r23d-told-the-start-at-each-place")
def told_the_start_at_each_place(run: Run, wrong: bool) -> None:
    """accelerate, a CNN with a GRU cell that writes captions word by word. The word that goes into the cell is set to
    the mark of a start before the loop over places and never again: it is not told what the word before was. The twin
    gives the true word before. Judged by the cross-entropy of other captions."""
    seed = run.draw.randrange(999)
    net = Captions(13)

    def told(caption: Tensor, place: int) -> Tensor:
        start = torch.full((len(caption),), 12)
        return start if wrong or place == 0 else caption[:, place - 1]

    check = written(384, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: captioned(net, told, *check)))
    data = loader(*written(480, seed))
    prepared(run, net, adam(net, 5e-3), data, lambda _, b: captioned(net, told, *b), 4)
