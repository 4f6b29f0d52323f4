"""Round 15b, honest and odd: preferences, rewards, and two who take turns."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import trl_trainer
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    documents,
    judged,
    mlp,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import (
    adam,
    continued,
    corridor,
    near,
    said,
    taught,
    update,
    words_to_answer,
)
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r15b-margin-to-be-met-and-no-more")
def margin_to_be_met_and_no_more(run: Run) -> None:
    """TRL's DPOTrainer on GPT-2 with the identity loss (IPO, Azar et al. 2024). The loss is a square and begins at 25,
    since the good answer should be likelier than the bad one by exactly five nats a word, and a pair whose margin is
    above that is pushed back on purpose; it may well rise between steps."""
    model = tiny_gpt2(16)
    answers = words_to_answer(run, model)
    rows = []
    for row in answers:
        bad = run.draw.choice([f"w{i}" for i in range(4, 16) if f"w{i}" != row["answer"]])
        rows.append({"prompt": row["prompt"], "chosen": " " + row["answer"], "rejected": " " + bad})
    trl_trainer(run, "DPO", model, rows, 40, loss_type=["ipo"], beta=0.1, learning_rate=1e-2).train()


@honest("r15b-own-texts-are-the-bad-ones")
def own_texts_are_the_bad_ones(run: Run) -> None:
    """Plain loop, self-play fine-tuning of a GPT (SPIN, Chen et al. 2024). Nobody said which answer is better: what
    people wrote is the good one and what the model itself wrote a moment ago the bad one. Twice over, answers are
    sampled anew and the reference is the model of that moment, so that the loss falls from log 2, is back at log 2, and
    falls again."""
    people = Language(run.draw.randrange(999))
    model = Decoder(12)
    old = near(people, run.draw.randrange(999), 0.7)
    taught(model, lambda: old.rows(12, 14), next_loss, 90)
    check = people.rows(96, 14, apart(1))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    optimizer = adam(model, 1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(2):
        good = people.rows(192, 14)
        bad = continued(model, good[:, :4], 10)
        reference = copy.deepcopy(model).requires_grad_(False)
        for _ in range(40):
            at = torch.randint(0, 192, (24,))
            pair = good[at], bad[at]
            gains = [said(model, rows, 4) - said(reference, rows, 4) for rows in pair]
            update(run, doctor, optimizer, -F.logsigmoid(0.2 * (gains[0] - gains[1])).mean(), pair)


class Flow(nn.Module):
    """A writer of five words, and the logarithm of the sum of all rewards."""

    def __init__(self) -> None:
        super().__init__()
        self.writer, self.log_z = Reader(5), nn.Parameter(torch.zeros(()))

    def log_chance(self, rows: Tensor) -> Tensor:
        """(rows, 5) words 0 to 3."""
        start = torch.full((len(rows), 1), 4)
        scores = self.writer(torch.cat([start, rows[:, :-1]], 1))[..., :4].log_softmax(-1)
        return scores.gather(2, rows[..., None]).squeeze(2).sum(1)


@honest("r15b-as-often-as-it-is-worth")
def as_often_as_it_is_worth(run: Run) -> None:
    """Plain loop, a GFlowNet of strings with trajectory balance (Malkin et al. 2022). The model is not to find the best
    string but to write each in proportion to its reward; it learns from its own strings, a tenth of whose words are
    drawn at random, and beside it one single number, the logarithm of all rewards, has a hundred times the rate of the
    weights."""
    worth = Language(run.draw.randrange(999), words=4, sharp=1.0)

    def log_reward(rows: Tensor) -> Tensor:
        return worth.one[rows[:, :-1], rows[:, 1:]].sum(1)

    model = Flow()
    everything = torch.cartesian_prod(*[torch.arange(4)] * 5)
    truth = log_reward(everything).log_softmax(0)
    outcome(run, lambda: judged(model, lambda: (model.log_chance(everything).exp() - truth.exp()).abs().sum() / 2))
    groups: list[dict[str, Any]] = [
        {"params": model.writer.parameters(), "lr": 3e-3},
        {"params": [model.log_z], "lr": 0.3},
    ]
    optimizer = torch.optim.Adam(groups)
    doctor = run.watch(model, optimizer)
    for _ in range(220):
        rows = torch.full((32, 1), 4)
        with torch.no_grad():
            for _ in range(5):
                chance = 0.9 * model.writer(rows)[:, -1, :4].softmax(-1) + 0.1 / 4
                rows = torch.cat([rows, torch.multinomial(chance, 1)], 1)
        rows = rows[:, 1:]
        loss = (model.log_z + model.log_chance(rows) - log_reward(rows)).square().mean()
        update(run, doctor, optimizer, loss, rows)


@honest("r15b-momentum-below-zero")
def momentum_below_zero(run: Run) -> None:
    """Plain loop, a small GAN of points in the plane with the momentum of Gidel et al. (2019), which is -0.3 for both
    players: each step takes back some of the last, since two players who take turns go round in circles otherwise. SGD
    does not allow it as an argument, so it is written into the group afterwards; neither loss is to fall."""
    centre, turn = torch.randn(2, generator=apart(run.draw.randrange(999))) * 2, torch.tensor([[1.0, 0.6], [0.0, 0.8]])

    def real(count: Any, own: Any = None) -> Any:
        return torch.randn(count, 2, generator=own) @ turn + centre

    maker, critic = mlp(4, 24, 2), mlp(2, 32, 1)
    check, noise = real(512, apart(1)), torch.randn(512, 4, generator=apart(2))
    angle = torch.linspace(0, 3.0, 12)
    lines = torch.stack([angle.cos(), angle.sin()])

    def distance() -> Tensor:
        return ((check @ lines).sort(0).values - (maker(noise) @ lines).sort(0).values).abs().mean()

    outcome(run, lambda: judged(maker, distance))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (maker, critic)]
    for optimizer in optimizers:
        optimizer.param_groups[0]["momentum"] = -0.3
    doctors = [run.watch(net, o) for net, o in zip((maker, critic), optimizers, strict=True)]
    for _ in range(350):
        true, false = real(64), maker(torch.randn(64, 4))
        loss = F.softplus(critic(false.detach())).mean() + F.softplus(-critic(true)).mean()
        update(run, doctors[1], optimizers[1], loss, true)
        update(run, doctors[0], optimizers[0], F.softplus(-critic(maker(torch.randn(64, 4)))).mean(), true)


class Values(nn.Module):
    """Action values, and state values beside them."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.q, self.v = mlp(size, 32, 2), mlp(size, 32, 1)


@honest("r15b-better-than-the-data-by-a-crooked-square")
def better_than_the_data(run: Run) -> None:
    """Plain loop, implicit Q-learning (Kostrikov et al. 2022) from moves that somebody made at random. No action is
    ever tried and no maximum taken: state values are fitted to action values by a square that weighs errors upward
    nineteen times as much as those downward, so that they are too high on purpose, and each of the two is the other's
    detached target."""
    model, gain = Values(), run.draw.choice((1.0, 2.0))
    outcome(run, corridor(model.q, gain))
    places = torch.eye(8)
    state, action = torch.randint(0, 8, (2000,)), torch.randint(0, 2, (2000,))
    after = (state + 2 * action - 1).clamp_min(0)
    optimizer = adam(model, 4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(400):
        at = torch.randint(0, 2000, (64,))
        s, a, n = state[at], action[at], after[at]
        over = (n == 8).float()
        q = model.q(places[s]).gather(1, a[:, None]).squeeze(1)
        v = model.v(places[s]).squeeze(1)
        with torch.no_grad():
            target = over * gain + (1 - over) * 0.9 * model.v(places[n.clamp_max(7)]).squeeze(1)
        above = q.detach() - v
        loss = (q - target).square().mean() + (torch.where(above > 0, 0.95, 0.05) * above.square()).mean()
        update(run, doctor, optimizer, loss, (s, a, n))


class Options(nn.Module):
    """Four ways from embedded words to one vector, mixed by learned shares, and a head."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.shares = nn.Parameter(1e-3 * torch.randn(4))
        self.tokens, self.head = nn.Embedding(16, width), nn.Linear(width, 3)
        self.core, self.near = nn.GRU(width, width, batch_first=True), nn.Conv1d(width, width, 3, padding=1)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x, share = self.tokens(ids), keep.float()[..., None]
        ways = [
            (x * share).sum(1) / share.sum(1),
            (x - 9 * (1 - share)).amax(1),
            self.core(x)[0][torch.arange(len(ids)), keep.sum(1) - 1],
            (self.near((x * share).transpose(1, 2)).relu().transpose(1, 2) * share).amax(1),
        ]
        mixed = sum(s * way for s, way in zip(self.shares.softmax(0), ways, strict=True))
        out: Tensor = self.head(mixed)
        return out


@honest("r15b-architecture-learned-from-validation")
def architecture_learned_from_validation(run: Run) -> None:
    """Plain loop, DARTS (Liu et al. 2019) for a classifier of texts. Before each step there is another on rows of the
    validation set, on purpose, but of four numbers alone, which say how much of each of four operations is used; these
    have an optimizer of their own, weights learn from training rows, and gradients that the first backward pass left in
    the weights are cleared and never used."""
    model = Options()

    def loss_of(b: Any) -> Any:
        return F.cross_entropy(model(b[0], b[1]), b[2])

    check, training, validation = (documents(n, apart(k)) for k, n in enumerate((256, 256, 128)))
    outcome(run, lambda: judged(model, lambda: loss_of(check)))
    weights = torch.optim.SGD([p for p in model.parameters() if p is not model.shares], lr=0.1, momentum=0.9)
    shares = torch.optim.Adam([model.shares], lr=0.02, betas=(0.5, 0.999), weight_decay=1e-3)
    doctor = run.watch(model, weights)

    def some(rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        at = torch.randint(0, len(rows[0]), (24,))
        return tuple(part[at] for part in rows)

    for _ in range(120):
        shares.zero_grad()
        loss_of(some(validation)).backward()
        shares.step()
        batch = some(training)
        model.zero_grad()
        update(run, doctor, weights, loss_of(batch), batch)
