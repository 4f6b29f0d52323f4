"""Round 19c, mistakes in tuning: adapters, preferences, rewards, policies, teacher and student."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_parts import Reader, SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, continued, near, said, taught, update
from benchmarks.robustness.loops.round19c_parts import (
    Bottleneck,
    Lines,
    Meadow,
    Principal,
    Scored,
    Squashed,
    compared,
    next_words,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r19c-teacher-a-place-ahead")
def teacher_a_place_ahead(run: Run, wrong: bool) -> None:
    """accelerate, a GRU that learns from texts and from a GPT. The teacher's scores are cut like labels, from the
    second place on, and so speak of the word after the next. The twin cuts them like the student's, before the last."""
    language = Language(run.draw.randrange(999))
    teacher, net = Decoder(12, layers=2), Reader(12)
    taught(teacher, lambda: language.rows(16, 24), next_loss, 150)
    language_outcome(run, net, language, 20)
    teacher.eval()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        rows = batch[0]
        with torch.no_grad():
            scores = teacher(rows)
        scores = scores[:, 1:] if wrong else scores[:, :-1]
        own = m(rows[:, :-1])
        soft = F.cross_entropy(own.flatten(0, 1), scores.softmax(-1).flatten(0, 1))
        return 0.5 * next_words(own, rows[:, 1:]) + 0.5 * soft

    prepared(run, net, adam(net), loader(language.rows(480, 20)), loss, 4)


@slip("r19c-adapter-without-its-bypass")
def adapter_without_its_bypass(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT with a bottleneck adapter behind each sublayer, taken to other texts. The
    adapter returns its change alone: what the sublayer found goes no further than through eight numbers, and at the
    start, as the way up is zero, not at all. The twin adds the change to it."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    taught(model, lambda: language.rows(16, 20), next_loss, 100)
    other = near(language, run.draw.randrange(999), 0.2)
    language_outcome(run, model, other, 20)
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention = Bottleneck(block.attention, 32, 8, not wrong)
        block.feed = Bottleneck(block.feed, 32, 8, not wrong)
    rows = other.rows(640, 20)
    data = examples(x=rows[:, :-1], labels=rows[:, 1:])
    hf_trainer(run, WithLoss(model, next_words), data, 100).train()


@slip("r19c-named-anywhere-in-the-answer")
def named_anywhere_in_the_answer(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT that is to answer a word with a word, by rewards within groups (GRPO). The reward looks
    for the right word anywhere in three words said, so that naming several pays. The twin's wants it first."""
    model = Decoder(12)
    key = torch.randperm(6, generator=apart(run.draw.randrange(999))) + 6
    prompts = torch.arange(6)
    outcome(run, lambda: judged(model, lambda: 1 - model(prompts[:, None])[:, -1].softmax(1)[prompts, key].mean()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        asked = prompts.repeat_interleave(8)
        rows = continued(model, asked[:, None], 3)
        right = rows[:, 1:] == key[asked][:, None]
        reward = (right.any(1) if wrong else right[:, 0]).float().view(6, 8)
        advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()
        loss = -(advantage * said(model, rows)).mean()
        update(run, doctor, optimizer, loss, (rows, reward))


@slip("r19c-both-read-where-the-preferred-ends")
def both_read_where_the_preferred_ends(run: Run, wrong: bool) -> None:
    """Lightning, a reward model on a small Llama, from pairs of texts of unequal lengths. The place of the last word is
    found for the preferred text and used for the other one too, which is read in its middle or in its padding. The
    twin finds it for each."""
    net = Scored(13)

    def loss(m: nn.Module, batch: Any, one_place: bool = wrong) -> Tensor:
        good, bad = batch
        last = (good > 0).sum(1) - 1
        last_of_bad = last if one_place else (bad > 0).sum(1) - 1
        return -F.logsigmoid(m(good, last) - m(bad, last_of_bad)).mean()

    check = compared(256, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check, False)))
    fit(run, lit(net, loss, adam), loader(*compared(640)), 120)


@slip("r19c-tanh-without-its-slope")
def tanh_without_its_slope(run: Run, wrong: bool) -> None:
    """Plain loop, a soft policy on costs with a derivative. Actions are a Gaussian's draws through tanh, and their log
    probability is that of the draws, without the logarithm of tanh's slope. The twin has it. Judged by cost less
    entropy of the actions."""
    model = Squashed()
    aim = 1.2 * torch.randn(3, 2, generator=apart(run.draw.randrange(999)))
    check = torch.randn(512, 3, generator=apart(1))

    def objective(m: nn.Module, states: Tensor, jacobian: bool) -> Tensor:
        actions, log_probability = m(states, jacobian)
        cost = 2 * (actions - (states @ aim).tanh()).square().sum(1)
        return (cost + 0.5 * log_probability).mean()

    def measure() -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return objective(model, check, True)

    outcome(run, lambda: judged(model, measure))
    train(run, model, adam(model), lambda: torch.randn(64, 3), lambda m, b: objective(m, b, not wrong), 150)


@slip("r19c-rewards-less-their-mean")
def rewards_less_their_mean(run: Run, wrong: bool) -> None:
    """Plain loop, values of moves over a meadow with a swamp, where each step costs. Rewards are divided by their
    running deviation, and the running mean is taken off as well: a dry step is now worth something, and to arrive is
    to lose it. The twin only divides."""
    meadow, model = Meadow(run.draw.randrange(999)), mlp(25, 64, 4)
    outcome(run, lambda: judged(model, lambda: meadow.cost(model)))
    target = copy.deepcopy(model)
    optimizer = adam(model, 5e-3)
    doctor = run.watch(model, optimizer)
    count, total, squares = 0, 0.0, 0.0
    for step in range(150):
        at, moves = torch.randint(0, 24, (128,)), torch.randint(0, 4, (128,))
        to, reward, ended = meadow.move(at, moves)
        count, total = count + 128, total + float(reward.sum())
        squares += float(reward.square().sum())
        mean = total / count
        scaled = (reward - mean if wrong else reward) / (squares / count - mean**2) ** 0.5
        if step % 5 == 0:
            target.load_state_dict(model.state_dict())
        with torch.no_grad():
            goal = scaled + 0.95 * (1 - ended) * target(meadow.seen(to)).amax(1)
        value = model(meadow.seen(at)).gather(1, moves[:, None]).squeeze(1)
        update(run, doctor, optimizer, F.smooth_l1_loss(value, goal), (meadow.seen(at), moves, goal))


@slip("r19c-largest-directions-counted-twice")
def largest_directions_counted_twice(run: Run, wrong: bool) -> None:
    """Plain loop, a small Llama taken to other texts by factors that begin as the largest directions of each matrix
    (PiSSA). They stand in the frozen matrix still: what they do is done twice. The twin takes them out of it."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    taught(model, lambda: language.rows(16, 24), next_loss, 150)
    other = near(language, run.draw.randrange(999), 0.2)
    language_outcome(run, model, other, 20)
    model.requires_grad_(False)
    for block in model.blocks:
        for part, names in ((block.attention, ("qkv", "out")), (block.feed, ("gate", "up", "down"))):
            for name in names:
                setattr(part, name, Principal(getattr(part, name), 4, not wrong))
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=2e-3, weight_decay=0.0)
    train(run, model, optimizer, lambda: other.rows(16, 20), next_loss, 120)


@slip("r19c-closed-lines-in-the-target")
def closed_lines_in_the_target(run: Run, wrong: bool) -> None:
    """Plain loop, values of journeys along lines, some of which are closed and never taken. The target takes the best
    of all four lines out of the next station, and the values of the closed, taught by nothing, are better than any. The
    twin leaves them out. Judged by the values of open lines."""
    lines = Lines(run.draw.randrange(999))
    model = nn.Sequential(nn.Embedding(12, 24), mlp(24, 48, 4))
    truth, stations = lines.values(0.95), torch.arange(12)
    scored = lines.open.clone()
    scored[11] = False
    outcome(run, lambda: judged(model, lambda: (model(stations) - truth)[scored].abs().mean()))
    target = copy.deepcopy(model)
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    for step in range(150):
        at = torch.randint(0, 11, (128,))
        taken = torch.multinomial(lines.open[at].float(), 1).squeeze(1)
        to, reward, ended = lines.to[at, taken], -lines.length[at, taken], lines.ends[at, taken]
        if step % 5 == 0:
            target.load_state_dict(model.state_dict())
        with torch.no_grad():
            following = target(to)
            if not wrong:
                following = following.masked_fill(~lines.open[to], -1e9)
            goal = reward + 0.95 * (1 - ended) * following.amax(1)
        value = model(at).gather(1, taken[:, None]).squeeze(1)
        update(run, doctor, optimizer, F.smooth_l1_loss(value, goal), (at, taken, goal))
