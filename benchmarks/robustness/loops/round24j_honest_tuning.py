"""Round 24j, honest and odd: tuning of given models by adapters, preferences, rewards and teachers."""

import copy
from functools import partial
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_tools import continued, near, said, taught, update
from torch import Tensor, nn
from torch.nn import functional as F


class Convolved(nn.Module):
    """Two layers of means over neighbours."""

    def __init__(self, share: Tensor) -> None:
        super().__init__()
        self.share: Tensor
        self.register_buffer("share", share)
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.share @ self.second((self.share @ self.first(x)).relu())
        return out


@honest("r24j-pupil-without-the-graph")
def pupil_without_the_graph(run: Run) -> None:
    """Plain loop, a graph's knowledge in a net that sees no edges (GLNN, Zhang et al. 2022). The teacher is a graph
    network that knows a node's neighbours; the pupil is an MLP that must say the same from the node alone, which it
    never can altogether. Its batch is the whole graph in each step, nodes that are held for the test among them, with
    the teacher's shares for labels; fifteen nodes have labels of their own."""
    own = apart(run.draw.randrange(999))
    y = torch.randint(0, 3, (240,), generator=own)
    centres = torch.randn(3, 8, generator=own)
    x = centres[y] + 1.3 * torch.randn(240, 8, generator=own)
    chance = torch.where(y[:, None] == y[None], 0.06, 0.012)
    edges = (torch.rand(240, 240, generator=own) < chance).float().triu(1)
    edges = edges + edges.T + torch.eye(240)
    few = torch.cat([(y == k).nonzero()[:5, 0] for k in range(3)])
    rest = torch.ones(240, dtype=torch.bool)
    rest[few] = False
    teacher = Convolved(edges / edges.sum(1, keepdim=True))
    taught(teacher, lambda: x, lambda m, b: F.cross_entropy(m(b)[few], y[few]), 60, 1e-2)
    shares = teacher(x).detach().softmax(1)
    pupil = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
    outcome(run, lambda: judged(pupil, lambda: F.cross_entropy(pupil(x[rest]), y[rest])))
    optimizer = torch.optim.Adam(pupil.parameters(), lr=1e-2, weight_decay=5e-4)
    doctor = run.watch(pupil, optimizer)
    for _ in range(120):
        logits = pupil(x)
        as_told = F.kl_div(logits.log_softmax(1), shares, reduction="batchmean")
        update(run, doctor, optimizer, as_told + 0.2 * F.cross_entropy(logits[few], y[few]), (x, shares))


PHRASES = torch.tensor([[20, 1, -100, -100], [21, 22, 1, -100], [23, 24, 25, 1], [21, 26, 1, -100]])


def small_t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    shape: dict[str, Any] = {"vocab_size": 32, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(
        T5Config(**shape, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    )


def each_choice(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, 4, 4) log probabilities of the words of each of the phrases, and where there are any."""
    rows = len(ids)
    labels = PHRASES.repeat(rows, 1)
    logits = model(input_ids=ids.repeat_interleave(4, 0), labels=labels).logits
    known = labels >= 0
    each = logits.log_softmax(2).gather(2, labels.clamp_min(0)[..., None]).squeeze(2)
    return each.view(rows, 4, 4), known.view(rows, 4, 4)


def t_few_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    ids, y = batch
    each, known = each_choice(model, ids)
    right = F.one_hot(y, 4).bool()[..., None] & known
    wrong = known & ~right
    likely = -each[right].mean()
    unlikely = -torch.log1p(-each[wrong].exp().clamp_max(1 - 1e-4)).mean()
    by_length = (each * known).sum(2) / known.sum(2)
    return likely + unlikely + F.cross_entropy(by_length, y)


@honest("r24j-wrong-choices-made-unlikely-and-lengths-evened")
def wrong_choices_made_unlikely_and_lengths_evened(run: Run) -> None:
    """Plain loop with PEFT, a T5 tuned as T-Few (Liu et al. 2022): the whole model stands still and vectors that begin
    at one scale keys, values and hidden units. Three losses are added: the likelihood of the right phrase, the
    unlikelihood of each word of the wrong ones, even of words that all of them share, as the end is, so that the two
    pull against each other, and cross-entropy between phrases by their mean over words. It has no weight decay and a
    high rate, and sixty-four rows are seen over and over."""
    from peft import IA3Config, get_peft_model

    own = apart(run.draw.randrange(999))
    orders = torch.cartesian_prod(*[torch.arange(4)] * 4)
    orders = orders[(orders.sort(1).values == torch.arange(4)).all(1)]
    orders = orders[torch.randperm(24, generator=own)[:7]]

    def drawn(rows: int, task: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A task's word (2..8) and five words of four groups (9..18); the group of the most is asked for."""
        group = torch.randint(0, 4, (rows,), generator=own)
        same = torch.rand(rows, 5, generator=own) < 0.6
        groups = torch.where(same, group[:, None], torch.randint(0, 4, (rows, 5), generator=own))
        words = 9 + 2 * groups + torch.randint(0, 2, (rows, 5), generator=own)
        return torch.cat([2 + task[:, None], words], 1), orders[task, group]

    base = small_t5()

    def before(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(input_ids=batch[0], labels=PHRASES[batch[1]]).loss  # type: ignore[no-any-return]

    taught(base, lambda: drawn(32, torch.randint(0, 6, (32,))), before, 130, 1e-2)
    modules = {"target_modules": ["k", "v", "wo"], "feedforward_modules": ["wo"]}
    model = get_peft_model(base, IA3Config(task_type="SEQ_2_SEQ_LM", **modules))
    check = drawn(64, torch.full((64,), 6), apart(1))

    def mistaken() -> Tensor:
        each, known = each_choice(model, check[0])
        return F.cross_entropy((each * known).sum(2) / known.sum(2), check[1])

    outcome(run, lambda: judged(model, mistaken))
    x, y = drawn(64, torch.full((64,), 6), own)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        rows = torch.randperm(64)[:8]
        update(run, doctor, optimizer, t_few_loss(model, (x[rows], y[rows])), (x[rows], y[rows]))


class InOrder:
    """Preferences among lists: the best of four before the other three, the next before the other two, and so on."""

    def __init__(self, run: Run, policy: nn.Module, strength: float) -> None:
        self.run, self.policy, self.strength = run, policy, strength
        self.reference = copy.deepcopy(policy).requires_grad_(False)

    def loss(self, lists: Tensor) -> Tensor:
        """(prompts, 4, words), the best first."""
        count, many, _ = lists.shape
        flat = lists.flatten(0, 1)
        gains = self.strength * (said(self.policy, flat, 3) - said(self.reference, flat, 3)).view(count, many)
        after = gains.flip(1).logcumsumexp(1).flip(1)
        return (after - gains).sum(1).mean()

    def fit(self, lists: Tensor, optimizer: Any, epochs: int) -> None:
        doctor = self.run.watch(self.policy, optimizer)
        for _ in range(epochs):
            for (batch,) in loader(lists, size=24):
                update(self.run, doctor, optimizer, self.loss(batch), batch)


@honest("r24j-four-answers-in-order")
def four_answers_in_order(run: Run) -> None:
    """A class of its own, a small GPT by preferences among lists of four (Plackett and Luce, as in the appendix of
    Rafailov et al. 2023, and Song et al. 2024). The loss begins at the logarithm of twenty-four whatever the model is,
    has no labels but the order in which the answers lie, and the last of each list is only ever pushed down; the
    optimizer is RMSprop, as theirs is."""
    language = Language(run.draw.randrange(999))
    liked = near(language, run.draw.randrange(999), 0.5)
    policy = Decoder(12, layers=1)
    taught(policy, lambda: language.rows(24, 12), next_loss, 120)

    def worth(rows: Tensor) -> Tensor:
        """How likely the person who ranks finds an answer."""
        total = torch.zeros(len(rows))
        for t in range(3, rows.shape[1]):
            chance = (liked.one[rows[:, t - 1]] + liked.two[rows[:, t - 2]]).log_softmax(1)
            total += chance.gather(1, rows[:, t, None]).squeeze(1)
        return total

    prompts = language.rows(192, 3, apart(1))

    def disliked() -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            return -worth(continued(policy, prompts, 7)).mean()

    outcome(run, lambda: judged(policy, disliked))
    answers = continued(policy, language.rows(240, 3).repeat_interleave(4, 0), 7)
    order = (worth(answers) + torch.randn(len(answers))).view(240, 4).argsort(1, descending=True)
    lists = answers.view(240, 4, 10).gather(1, order[..., None].expand(-1, -1, 10))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-4)
    InOrder(run, policy, 0.5).fit(lists, optimizer, 12)


@honest("r24j-marks-that-sum-to-nought")
def marks_that_sum_to_nought(run: Run) -> None:
    """transformers' Trainer, a reward model on a small BERT whose marks are centred (Eisenstein et al. 2023, in TRL's
    RewardTrainer). Only which of two texts was preferred is known, with mistakes as people make them, so that the loss
    has a floor not far below where it starts; beside that, the two marks of a pair are drawn to a sum of zero. There is
    no label in the batch, the head has one output, and the rejected texts go through the model in a second call."""
    from transformers import Trainer

    worth = torch.randn(16, generator=apart(run.draw.randrange(999)))

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        rows = torch.randint(1, 16, (2, count, 10), generator=own)
        first, second = worth[rows].sum(2)
        wins = torch.rand(count, generator=own) < (0.7 * (first - second)).sigmoid()
        a, b = rows
        return torch.where(wins[:, None], a, b), torch.where(wins[:, None], b, a)

    model = tiny_bert(1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def marks(model: Any, chosen: Tensor, rejected: Tensor) -> tuple[Tensor, Tensor]:
        return model(input_ids=chosen).logits[:, 0], model(input_ids=rejected).logits[:, 0]

    def misjudged(model: Any, chosen: Tensor, rejected: Tensor) -> Tensor:
        good, bad = marks(model, chosen, rejected)
        return -F.logsigmoid(good - bad).mean()

    check = pairs(384, apart(1))
    outcome(run, lambda: judged(model, lambda: misjudged(model, *check)))

    class Rewards(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            good, bad = marks(model, inputs["chosen"], inputs["rejected"])
            loss = -F.logsigmoid(good - bad).mean() + 0.01 * (good + bad).square().mean()
            return (loss, {"good": good, "bad": bad}) if return_outputs else loss

    chosen, rejected = pairs(1600)
    options = {"per_device_train_batch_size": 32, "learning_rate": 3e-3, "remove_unused_columns": False}
    hf_trainer(run, model, examples(chosen=chosen, rejected=rejected), 120, Rewards, **options).train()


class FromNoise(nn.Module):
    """A diffusion model of points: the noise in a point at a time from 0 to 1, and ten steps without chance back."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(5, 64, 64, 2, act=nn.SiLU)

    @staticmethod
    def level(t: Tensor) -> Tensor:
        """Which share of the variance is not noise."""
        return torch.cos(1.5 * t).square()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        t = t.expand(len(x), 1)
        out: Tensor = self.net(torch.cat([x, t, (3 * t).sin(), (3 * t).cos()], 1))
        return out

    def drawn(self, x: Tensor, with_slope: int = 0) -> Tensor:
        """Gradients pass through the last `with_slope` steps."""
        times = torch.linspace(1, 0, 11)
        for i in range(10):
            with torch.set_grad_enabled(torch.is_grad_enabled() and i >= 10 - with_slope):
                now, then = self.level(times[i]), self.level(times[i + 1])
                noise = self(x, times[i])
                clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
                x = then.sqrt() * clean.clamp(-3, 3) + (1 - then).sqrt() * noise
        return x


@honest("r24j-reward-flows-back-through-the-last-steps")
def reward_flows_back_through_the_last_steps(run: Run) -> None:
    """Plain loop, a diffusion model tuned by the slope of a reward (DRaFT-K, Clark et al. 2024). There are no data and
    no target any more: a batch is noise, it goes through all ten steps of the sampler, of which the last three have a
    gradient, and what is told is the negative reward of what came out, which begins below zero and falls without a
    floor that anybody knows. Gradients are those of one net three times over; the rate is a fraction of that before."""
    own = apart(run.draw.randrange(999))
    favourite = 0.5 * torch.randn(1, 2, generator=own) + torch.tensor([[0.8, 0.8]])
    model = FromNoise()

    def denoised(model: Any, x: Tensor) -> Tensor:
        t, noise = torch.rand(len(x), 1), torch.randn_like(x)
        level = model.level(t)
        return F.mse_loss(model(level.sqrt() * x + (1 - level).sqrt() * noise, t), noise)

    def ring() -> Tensor:
        angle = 6.2832 * torch.rand(128)
        return 1.4 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(128, 2)

    taught(model, ring, denoised, 300)

    def reward(x: Tensor) -> Tensor:
        return 3 - (1 + (x - favourite).square().sum(1)).sqrt()

    start = torch.randn(512, 2, generator=own)
    outcome(run, lambda: judged(model, lambda: -reward(model.drawn(start)).mean()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.999), weight_decay=0.1)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        noise = torch.randn(64, 2)
        loss = -reward(model.drawn(noise, 3)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        doctor.step(loss, noise)
        run.note(loss)


@honest("r24j-a-spread-of-opinions-for-a-label")
def a_spread_of_opinions_for_a_label(run: Run) -> None:
    """Lightning, five CNNs in one that also knows how far they differ (ensemble distribution distillation, Malinin et
    al. 2020). The pupil's outputs are no logits of classes but logarithms of a Dirichlet's concentrations; the loss is
    the density of the five teachers' answers, so that it goes far below zero, and both sides are divided by a
    temperature that falls from five to one while it learns, by which the loss changes its scale."""
    task = run.draw.randrange(999)
    x, y = pictures(480, task)
    opinions = []
    for _ in range(5):
        teacher = cnn()
        some = torch.randint(0, 480, (160,))
        batches = endless(loader(x[some], y[some], size=24, drop_last=True))
        taught(teacher, partial(next, batches), classify, 25)
        teacher.eval()
        with torch.no_grad():
            opinions.append(teacher(x))
    net = cnn()
    class_outcome(run, net, pictures(384, task, own=apart(1)))
    step = 0

    def loss(net: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal step
        heat = max(1.0, 5 - step / 20)
        step += 1
        shares = 0.98 * (batch[1] / heat).softmax(2) + 0.02 / 4
        strengths = (net(batch[0]) / heat).clamp(-6, 6).exp() + 1e-3
        density = torch.distributions.Dirichlet(strengths[:, None]).log_prob(shares)
        return -density.mean() / heat

    module = lit(net, loss, lambda m: torch.optim.Adam(m.parameters(), lr=5e-3))
    fit(run, module, loader(x, torch.stack(opinions, 1), size=32), 150)
