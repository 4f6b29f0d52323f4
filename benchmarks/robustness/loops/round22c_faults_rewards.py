"""Round 22c, mistakes with rewards and preferences: who is credited, what holds a policy back, whose answer it was."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    fit,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_parts import Reader, SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, by_reward, taught, update, words_to_answer
from benchmarks.robustness.loops.round8b_parts import dpo_loss, preferred
from benchmarks.robustness.loops.round22c_parts import Field, slip
from torch import Tensor, nn


@slip("r22c-credited-with-what-came-before")
def credited_with_what_came_before(run: Run, wrong: bool) -> None:
    """Plain loop, REINFORCE for somebody who sows or sells in twelve weeks. Each week's choice is credited with the sum
    of what was earned up to it and not of what is earned from it on. The twin sums from it on. Judged by the mean
    earnings of others, with their sign turned."""
    field, net = Field(), mlp(4, 32, 2)
    optimizer = adam(net, 1e-2)

    def year(m: nn.Module, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        done, said, unsure = torch.zeros(count, field.weeks), [], []
        for week in range(field.weeks):
            chance = m(field.seen(done, week)).log_softmax(1)
            choice = torch.multinomial(chance.detach().exp(), 1, generator=own)
            said.append(chance.gather(1, choice)[:, 0])
            unsure.append(-(chance.exp() * chance).sum(1))
            done[:, week] = choice[:, 0].float()
        return torch.stack(said, 1), field.pay(done), torch.stack(unsure, 1)

    outcome(run, lambda: judged(net, lambda: -year(net, 256, apart(1))[1].sum(1).mean()))
    doctor = run.watch(net, optimizer)
    for _ in range(100):
        said, pay, unsure = year(net, 32)
        gain = pay.cumsum(1) if wrong else pay.flip(1).cumsum(1).flip(1)
        gain = gain - gain.mean(0)
        update(run, doctor, optimizer, -(said * gain).mean() - 0.01 * unsure.mean(), (said.detach(), pay))


@slip("r22c-a-divergence-that-pulls-nowhere")
def a_divergence_that_pulls_nowhere(run: Run, wrong: bool) -> None:
    """Plain loop, a recurrent policy that is rewarded for words of the upper half and held near the model it was. The
    term in the loss that holds it is the difference of log probabilities of its own samples: its mean is the divergence
    and the mean of its gradient is nought. The twin has exp(-d) - 1 + d in its place. Judged by the reward less the
    divergence, with their sign turned."""
    language = Language(run.draw.randrange(999))
    net = Reader(12)
    taught(net, lambda: language.rows(32, 12), next_loss, 120)
    before = copy.deepcopy(net).requires_grad_(False)
    prompts = language.rows(256, 4, apart(1))
    optimizer = adam(net, 2e-3)

    @torch.no_grad()
    def answered(rows: Tensor, own: torch.Generator | None = None) -> Tensor:
        for _ in range(8):
            rows = torch.cat([rows, torch.multinomial(net(rows)[:, -1].softmax(1), 1, generator=own)], 1)
        return rows

    def each(m: nn.Module, rows: Tensor) -> Tensor:
        out: Tensor = m(rows[:, :-1])[:, 3:].log_softmax(-1)
        return out

    def measure() -> Tensor:
        rows = answered(prompts, apart(2))
        now, then = each(net, rows), each(before, rows)
        divergence = (now.exp() * (now - then)).sum(-1).sum(1)
        return (divergence - (rows[:, 4:] >= 6).sum(1)).mean()

    outcome(run, lambda: judged(net, measure))
    doctor = run.watch(net, optimizer)
    for _ in range(80):
        rows = answered(language.rows(48, 4))
        reward = (rows[:, 4:] >= 6).float()
        gain = reward.flip(1).cumsum(1).flip(1)
        gain = gain - gain.mean(0)
        said = each(net, rows).gather(2, rows[:, 4:, None])[..., 0]
        apart_by = said - each(before, rows).gather(2, rows[:, 4:, None])[..., 0]
        held = apart_by if wrong else (-apart_by).exp() - 1 + apart_by
        update(run, doctor, optimizer, (held - said * gain).sum(1).mean(), rows)


@slip("r22c-answers-spread-once-more")
def answers_spread_once_more(run: Run, wrong: bool) -> None:
    """trl's GRPO, four completions for each prompt. Its trainer gives the reward function the right answers already
    repeated for each completion; the function takes every fourth as if they were one for each prompt, and compares with
    the answers to other prompts. The twin takes them as they come. Judged by how unlikely the right answers are."""
    net = tiny_gpt2()
    prompts = words_to_answer(run, net)

    def reward(completions: list[str], answer: list[str], **given: Any) -> list[float]:
        right = [answer[i // 4] if wrong else answer[i] for i in range(len(completions))]
        return [float(text.split()[:1] == [word]) for text, word in zip(completions, right, strict=True)]

    by_reward(run, "GRPO", net, prompts, reward, steps=60, learning_rate=1e-2, max_completion_length=1).train()


@slip("r22c-one-averaged-one-summed")
def one_averaged_one_summed(run: Run, wrong: bool) -> None:
    """Lightning, preferences between answers, with a reference kept from before. The log probability of an answer is
    averaged over its words for the model and summed for the reference, whose values were stored by another function.
    The twin sums both. Judged by the loss of other pairs, with sums."""
    language = Language(run.draw.randrange(999))
    net = SmallLlama()
    taught(net, lambda: language.rows(16, 12), next_loss, 100, 3e-3)

    def words(m: nn.Module, rows: Tensor) -> Tensor:
        out: Tensor = m(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None])[:, 3:, 0]
        return out

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        liked, other = preferred(language, count, own)
        with torch.no_grad():
            return liked, other, (words(net, liked) - words(net, other)).sum(1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        liked, other, reference = batch
        found = words(m, liked) - words(m, other)
        return dpo_loss(found.mean(1) if wrong else found.sum(1), reference)

    good, bad, kept = pairs(192, apart(1))
    outcome(run, lambda: judged(net, lambda: dpo_loss((words(net, good) - words(net, bad)).sum(1), kept)))
    fit(run, lit(net, loss, lambda m: adam(m, 2e-3)), loader(*pairs(640)), 100)
