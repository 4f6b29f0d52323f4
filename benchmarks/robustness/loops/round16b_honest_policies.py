"""Round 16b, honest and odd: preferences, rewards, players, and many who train one model."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import spelled, trl_trainer
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    judged,
    mlp,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_parts import Reader, SmallLlama, Translator
from benchmarks.robustness.loops.round7b_tools import adam, continued, near, said, taught, text_outcome, update
from torch import Tensor, nn
from torch.nn import functional as F


class Logits(nn.Module):
    """A model of transformers, as one that gives logits alone."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.inner(input_ids=ids).logits
        return out


@honest("r16b-sorted-before-they-are-compared")
def sorted_before_they_are_compared(run: Run) -> None:
    """TRL's DPOTrainer on a GPT-2 with alignment by optimal transport (AOT, Melnyk et al. 2024). Good and bad answers
    of a batch are each sorted by how much likelier they have become before they are compared, so that a good
    answer's partner is usually the answer to another prompt, on purpose: all good ones are to be above all bad
    ones."""
    model = tiny_gpt2()

    def pair(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        prompt = torch.randint(4, 16, (4,), generator=own)
        good = 4 + (prompt[-1] - 4 + torch.arange(1, 4)) % 12
        return torch.cat([prompt, good]), torch.cat([prompt, torch.randint(4, 16, (3,), generator=own)])

    def gap(own: torch.Generator) -> Tensor:
        good, bad = (torch.stack(rows) for rows in zip(*(pair(own) for _ in range(96)), strict=True))
        likely = [said(Logits(model), rows, 4) for rows in (good, bad)]
        return -F.logsigmoid(0.3 * (likely[0] - likely[1])).mean()

    outcome(run, lambda: judged(model, lambda: gap(apart(1))))
    rows = [
        {"prompt": spelled(a[:4]), "chosen": " " + spelled(a[4:]), "rejected": " " + spelled(b[4:])}
        for a, b in (pair() for _ in range(160))
    ]
    trl_trainer(run, "DPO", model, rows, 40, learning_rate=2e-3, beta=0.5, loss_type=["aot_unpaired"]).train()


@honest("r16b-difference-of-rewards-as-a-number")
def difference_of_rewards_as_a_number(run: Run) -> None:
    """Plain loop, a small GPT by REBEL (Gao et al. 2024): two answers to each prompt are sampled, and the difference
    of how much likelier each has become is to equal the difference of their rewards. The loss is a square between
    numbers of no common scale; twice as good an answer is not made as likely as can be, and the loss is back up
    with each of the five rounds, when both answers and what they are compared with are drawn anew."""
    policy = Decoder(12)
    taught(policy, lambda: Language(3, sharp=0.6).rows(16, 10), next_loss, 40)

    def worth(rows: Tensor) -> Tensor:
        return (rows[:, 2:] == (rows[:, 1:-1] + 1) % 12).float().mean(1)

    prompts = torch.randint(0, 12, (128, 2), generator=apart(1))
    outcome(run, lambda: judged(policy, lambda: 1 - worth(continued(policy, prompts, 6)).mean()))
    optimizer = adam(policy, 3e-3)
    doctor = run.watch(policy, optimizer)
    for _ in range(5):
        asked = torch.randint(0, 12, (96, 2))
        answers = [continued(policy, asked, 6) for _ in range(2)]
        with torch.no_grad():
            past = [said(policy, rows, 2) for rows in answers]
        for _ in range(14):
            some = torch.randint(0, 96, (32,))
            one, two = (said(policy, rows[some], 2) - old[some] for rows, old in zip(answers, past, strict=True))
            better = worth(answers[0][some]) - worth(answers[1][some])
            loss = ((one - two) / 2 - 3 * better).square().mean()
            update(run, doctor, optimizer, loss, (answers[0][some], answers[1][some]))


@honest("r16b-each-translates-for-the-other")
def each_translates_for_the_other(run: Run) -> None:
    """Plain loop, two recurrent translators that learn by back-translation (Sennrich et al. 2016), with 24 true pairs
    and many texts of one language. Half of each batch of one is sentences that the other one has just made up, with
    its mistakes: the source is wrong and the target is right, and it becomes better data as both learn."""
    key = torch.randperm(10, generator=apart(run.draw.randrange(999)))

    def texts(count: int, own: torch.Generator | None = None) -> Tensor:
        return torch.randint(0, 10, (count, 4), generator=own)

    there, back = Translator(10), Translator(10)

    def loss_of(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        shown = torch.cat([torch.full((len(target), 1), 10), target[:, :-1]], 1)
        return F.cross_entropy(model(source, shown).flatten(0, 1), target.flatten())

    @torch.no_grad()
    def made(model: nn.Module, source: Tensor) -> Tensor:
        out = torch.full((len(source), 1), 10)
        for _ in range(source.shape[1]):
            out = torch.cat([out, model(source, out)[:, -1].argmax(1, keepdim=True)], 1)
        return out[:, 1:]

    pairs, check = texts(24), texts(128, apart(1))
    outcome(run, lambda: judged(there, lambda: loss_of(there, check, key[check])))
    players = [(m, adam(m, 1e-2)) for m in (there, back)]
    doctors = [run.watch(m, o) for m, o in players]
    for _ in range(200):
        for i, (model, optimizer) in enumerate(players):
            true = pairs[torch.randint(0, 24, (12,))]
            source, target = (true, key[true]) if i == 0 else (key[true], true)
            own = key[texts(12)] if i == 0 else texts(12)
            source, target = torch.cat([source, made(players[1 - i][0], own)]), torch.cat([target, own])
            update(run, doctors[i], optimizer, loss_of(model, source, target), (source, target))


@honest("r16b-neighbours-on-a-ring")
def neighbours_on_a_ring(run: Run) -> None:
    """Plain loop, five machines without a server (decentralised SGD, Lian et al. 2017), each with a dialect of its
    own. After each step every GRU's weights become the mean of its own and its two neighbours', so that they are
    never equal, each watched model moves by more than its gradient, and each dialect's reader is better on all
    dialects than on its own alone."""
    seed = run.draw.randrange(999)
    common = Language(seed)
    dialects = [near(common, seed + 1 + i, 0.25) for i in range(5)]
    models = [Reader(12) for _ in range(5)]
    for other in models[1:]:
        other.load_state_dict(models[0].state_dict())
    text_outcome(run, models[0], common)
    optimizers = [adam(m) for m in models]
    doctors = [run.watch(m, o) for m, o in zip(models, optimizers, strict=True)]
    for _ in range(60):
        for model, optimizer, doctor, dialect in zip(models, optimizers, doctors, dialects, strict=True):
            rows = dialect.rows(8, 20)
            update(run, doctor, optimizer, next_loss(model, rows), rows)
        with torch.no_grad():
            for same in zip(*(m.parameters() for m in models), strict=True):
                mixed = [(same[i - 1] + same[i] + same[(i + 1) % 5]) / 3 for i in range(5)]
                for p, value in zip(same, mixed, strict=True):
                    p.copy_(value)


@honest("r16b-back-to-early-weights-with-fewer")
def back_to_early_weights_with_fewer(run: Run) -> None:
    """Plain loop, winning tickets of a small GPT (Frankle et al. 2020). Four times over it is trained, the smallest
    third of what is left of each matrix is set to zero for good, and all others are put back to what they were at
    step twelve: what was learned is thrown away, and the loss jumps up to where it was, since only the choice of
    weights is kept."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    masks = [torch.ones_like(p) for p in matrices]
    early: dict[str, Tensor] = {}
    for turn in range(4):
        optimizer = adam(model)
        doctor = run.watch(model, optimizer)
        for step in range(60):
            rows = language.rows(12, 20)
            update(run, doctor, optimizer, next_loss(model, rows), rows)
            with torch.no_grad():
                for p, mask in zip(matrices, masks, strict=True):
                    p.mul_(mask)
            if turn == 0 and step == 11:
                early = copy.deepcopy(model.state_dict())
        if turn < 3:
            for p, mask in zip(matrices, masks, strict=True):
                held = p.detach().abs()[mask.bool()]
                mask.mul_(p.detach().abs() > held.quantile(1 / 3))
            model.load_state_dict(early)
            with torch.no_grad():
                for p, mask in zip(matrices, masks, strict=True):
                    p.mul_(mask)


@honest("r16b-what-happened-was-the-aim")
def what_happened_was_the_aim(run: Run) -> None:
    """Plain loop, seven switches to be set to a wanted pattern, by Q-learning with hindsight (Andrychowicz et al.
    2017). The pattern is almost never reached, so that four in five of the rows learned from are false memories:
    the wanted pattern is replaced by one that did come about later, and the reward by what it would then have
    been."""
    size = 7
    model = mlp(2 * size, 64, size)
    target = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def played(wander: float, count: int, own: torch.Generator | None = None) -> tuple[Tensor, ...]:
        at, goal = (torch.randint(0, 2, (count, size), generator=own).float() for _ in range(2))
        states, moves = [at], []
        for _ in range(size):
            move = model(torch.cat([at, goal], 1)).argmax(1)
            free = torch.rand(count, generator=own) < wander
            move = torch.where(free, torch.randint(0, size, (count,), generator=own), move)
            at = (at - F.one_hot(move, size)).abs()
            states.append(at)
            moves.append(move)
        return torch.stack(states, 1), torch.stack(moves, 1), goal

    def missed() -> Tensor:
        states, _, goal = played(0.0, 256, apart(1))
        return 1 - (states == goal[:, None]).all(2).any(1).float().mean()

    outcome(run, lambda: judged(model, missed))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    memory = [played(1.0, 64)]
    for step in range(1200):
        if step % 3 == 0:
            memory = [*memory[-40:], played(0.3, 16)]
        states, moves, goals = memory[run.draw.randrange(len(memory))]
        row, time = torch.randint(0, len(goals), (128,)), torch.randint(0, size, (128,))
        later = time + 1 + (torch.rand(128) * (size - time)).long()
        goal = torch.where(torch.rand(128, 1) < 0.8, states[row, later], goals[row])
        after = states[row, time + 1]
        reached = (after == goal).all(1).float()
        with torch.no_grad():
            ahead = target(torch.cat([after, goal], 1)).amax(1)
        wanted = reached + 0.9 * (1 - reached) * ahead.clamp(0, 1)
        value = model(torch.cat([states[row, time], goal], 1)).gather(1, moves[row, time][:, None])[:, 0]
        update(run, doctor, optimizer, F.mse_loss(value, wanted), (states[row, time], goal))
        if step % 10 == 9:
            target.load_state_dict(model.state_dict())


@honest("r16b-all-but-the-head-is-shared")
def all_but_the_head_is_shared(run: Run) -> None:
    """Plain loop, federated personalisation (FedPer, Arivazhagan et al. 2019) of small Llamas on four phones, each of
    which names its words otherwise. After every six steps the bodies are averaged and the heads and tables of words
    are not: each model's body jumps while its head stays, and no model exists that is the common one."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    names = [torch.randperm(12, generator=apart(seed + i)) for i in range(4)]
    models = [SmallLlama(12, layers=1) for _ in range(4)]
    for other in models[1:]:
        other.load_state_dict(models[0].state_dict())
    check = language.rows(64, 20, apart(1))

    def each() -> Tensor:
        return torch.stack([next_loss(m, name[check]) for m, name in zip(models, names, strict=True)]).mean()

    outcome(run, lambda: judged(models[0], each))
    optimizers: list[Any] = [adam(m) for m in models]
    doctors = [run.watch(m, o) for m, o in zip(models, optimizers, strict=True)]
    for _ in range(14):
        for model, optimizer, doctor, name in zip(models, optimizers, doctors, names, strict=True):
            for _ in range(6):
                rows = name[language.rows(8, 20)]
                update(run, doctor, optimizer, next_loss(model, rows), rows)
        with torch.no_grad():
            for same in zip(*(m.blocks.parameters() for m in models), strict=True):
                mean = torch.stack(list(same)).mean(0)
                for p in same:
                    p.copy_(mean)
