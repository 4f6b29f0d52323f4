"""Round 13a, honest and odd: losses of ranking, retrieval, topics, graphs, segmentation and fine-tuning."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import spelled, trl_trainer
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    judged,
    loader,
    outcome,
    tiny_bert,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round12a_tools import scenes
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r13a-popular-items-forgiven")
def popular_items_forgiven(run: Run) -> None:
    """accelerate, SASRec: what comes next in a history of six things. Negatives are the other rows' answers, so that
    popular things are negatives more often than they should be; the logarithm of their share is taken off their scores
    while training, and only then, and rows with the same answer are no negatives: their scores are -1e9."""
    own = apart(run.draw.randrange(2, 999))
    share = 1 / torch.arange(3.0, 43)
    share = (share / share.sum())[torch.randperm(40, generator=own)]
    liking = torch.randn(40, 40, generator=own)

    def histories(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.multinomial(share, 7 * count, True, generator=own).view(count, 7)
        for t in range(1, 7):
            chance = share * (2 * liking[rows[:, t - 1]]).exp()
            rows[:, t] = torch.multinomial(chance, 1, generator=own).squeeze(1)
        return rows[:, :6], rows[:, 6]

    x, y = histories(1600, own)
    frequency = (torch.bincount(y, minlength=40) + 1) / (len(y) + 40)
    model = Decoder(40)

    def scores(m: Any, past: Tensor, things: Tensor) -> Tensor:
        users, table = m(past)[:, -1], m.tokens.weight
        return users @ table[things].T

    def loss(m: Any, batch: Any) -> Tensor:
        logits = scores(m, batch[0], batch[1]) - frequency[batch[1]].log()
        same = (batch[1][:, None] == batch[1][None]) & ~torch.eye(len(batch[1]), dtype=torch.bool)
        return F.cross_entropy(logits.masked_fill(same, -1e9), torch.arange(len(logits)))

    model.head = nn.Linear(32, 32, bias=False)
    past, following = histories(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(scores(model, past, torch.arange(40)), following)))
    prepared(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), loader(x, y, size=32), loss, 5)


@honest("r13a-margin-of-the-teacher")
def margin_of_the_teacher(run: Run) -> None:
    """accelerate, a BERT that reads question and passage together and gives one number. Taught is the difference
    between a good and a bad passage, as a larger model had it (margin-MSE): labels are margins between -6 and 17, not
    relevance, both numbers may drift together, and where the teacher held the bad passage for the better one it is
    learned so."""
    model = tiny_bert(1, max_position_embeddings=16, initializer_range=0.1)

    def triples(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        asked = torch.randint(0, 3, (count, 1, 1), generator=own)
        ours = 1 + 4 * asked + torch.randint(0, 4, (count, 2, 8), generator=own)
        share = torch.tensor([0.7, 0.2])[:, None]
        words = torch.where(torch.rand(count, 2, 8, generator=own) < share, ours, 0)
        words = torch.where(words == 0, torch.randint(1, 13, words.shape, generator=own), words)
        scores = 2.0 * ((words - 1) // 4 == asked).sum(2) + 0.5 * torch.randn(count, 2, generator=own)
        ids = torch.cat([(13 + asked).expand(-1, 2, -1), words], 2)
        return ids[:, 0], ids[:, 1], scores[:, 0] - scores[:, 1]

    def loss(m: Any, batch: Any) -> Tensor:
        good, bad = (m(input_ids=ids).logits.squeeze(1) for ids in batch[:2])
        return F.mse_loss(good - bad, batch[2])

    check = triples(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    data = loader(*triples(800, apart(run.draw.randrange(2, 999))), size=32)
    prepared(run, model, torch.optim.AdamW(model.parameters(), lr=2e-3), data, loss, 5)


class Topics(nn.Module):
    """ProdLDA (Srivastava and Sutton 2017): counts to a mixture of topics, drawn, and back to the chances of words."""

    def __init__(self, words: int, topics: int, width: int = 64) -> None:
        super().__init__()
        self.read = nn.Sequential(nn.Linear(words, width), nn.Softplus(), nn.Dropout(0.2))
        self.mean, self.spread = nn.Linear(width, topics), nn.Linear(width, topics)
        self.norms = nn.ModuleList(nn.BatchNorm1d(n, affine=False) for n in (topics, topics, words))
        self.words = nn.Linear(topics, words, bias=False)

    def forward(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        h = self.read(counts)
        mean, log_variance = self.norms[0](self.mean(h)), self.norms[1](self.spread(h))
        drawn = mean + (0.5 * log_variance).exp() * torch.randn_like(mean) if self.training else mean
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return self.norms[2](self.words(drawn.softmax(1))).log_softmax(1), divergence


@honest("r13a-topics-from-counts")
def topics_from_counts(run: Run) -> None:
    """Plain loop, topics of texts by ProdLDA. The input is a row of counts of words and so is the target, the loss is
    summed over all words of a text, above a hundred, and stays there; batch norms without gain and Adam's first moment
    at 0.99 are what its authors put against topics that become all alike."""
    topics = (2.5 * torch.randn(5, 60, generator=apart(run.draw.randrange(999)))).softmax(1)

    def texts(count: int, own: torch.Generator | None = None) -> Tensor:
        mixture = (3 * torch.randn(count, 5, generator=own)).softmax(1) @ topics
        return torch.zeros(count, 60).scatter_add_(
            1, torch.multinomial(mixture, 40, True, generator=own), torch.ones(count, 40)
        )

    def loss(m: nn.Module, counts: Tensor) -> Tensor:
        said, divergence = m(counts)
        return (divergence - (counts * said).sum(1)).mean()

    model, check = Topics(60, 5), texts(256, apart(1))
    outcome(run, lambda: judged(model, lambda: -(check * model(check)[0]).sum(1).mean() / 40))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.99, 0.999))
    train(run, model, optimizer, lambda: texts(64), loss, 500)


@honest("r13a-loss-times-its-own-probability")
def loss_times_its_own_probability(run: Run) -> None:
    """TRL's SFTTrainer, GPT-2 tuned with loss_type="dft" (dynamic fine-tuning): the loss of each word is multiplied by
    the word's own probability, without gradient, so that what the model holds impossible hardly teaches. The loss is
    far below cross-entropy, cannot exceed 0.37 a word, and may rise while the model learns."""
    seed = run.draw.randrange(999)
    language, model = Language(seed, sharp=3.0, first=4), tiny_gpt2(initializer_range=0.1)
    taught(model, lambda: language.rows(16, 16), lambda m, rows: m(input_ids=rows, labels=rows).loss, 80)
    other = near(language, seed + 1)
    other.first = 4
    check = other.rows(96, 16, apart(1))

    def missed() -> Tensor:
        return (model(input_ids=check).logits[:, 1:-1].argmax(2) != check[:, 2:]).float().mean()

    outcome(run, lambda: judged(model, missed))
    rows = [{"prompt": spelled(row[:2]), "completion": " " + spelled(row[2:])} for row in other.rows(320, 16)]
    options: dict[str, Any] = {"loss_type": "dft", "completion_only_loss": True, "learning_rate": 3e-3}
    trl_trainer(run, "SFT", model, rows, 60, **options).train()


class Turns(nn.Module):
    """RotatE (Sun et al. 2019): entities are complex numbers, a relation turns them."""

    def __init__(self, entities: int, relations: int, width: int = 16) -> None:
        super().__init__()
        self.entities = nn.Parameter(torch.empty(entities, width, 2).uniform_(-1, 1))
        self.turns = nn.Parameter(torch.empty(relations, width).uniform_(-math.pi, math.pi))

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        """How far the turned head is from the tail; `tail` may have more axes behind."""
        a, b = torch.view_as_complex(self.entities)[head], torch.view_as_complex(self.entities)[tail]
        turned = a * torch.polar(torch.ones_like(self.turns), self.turns)[relation]
        return (turned.view(len(head), *[1] * (tail.ndim - 1), -1) - b).abs().sum(-1)


@honest("r13a-negatives-weigh-themselves")
def negatives_weigh_themselves(run: Run) -> None:
    """Plain loop, a graph of facts by RotatE. Each fact has 16 made-up ones, some of which are true, as nobody checks;
    their weights are a softmax of their own scores, without gradient, so that the hardest count most. The model is two
    tables and a margin of six, without any layer, in complex numbers."""
    steps = torch.randperm(39, generator=apart(run.draw.randrange(999)))[:4] + 1
    facts = torch.cartesian_prod(torch.arange(40), torch.arange(4))
    facts = torch.cat([facts, (facts[:, :1] + steps[facts[:, 1:]]) % 40], 1)
    facts = facts[torch.randperm(160, generator=apart(1))]

    def batch() -> tuple[Tensor, Tensor]:
        return facts[torch.randint(0, 130, (32,))], torch.randint(0, 40, (32, 16))

    def loss(m: Any, told: tuple[Tensor, Tensor]) -> Tensor:
        (head, relation, tail), others = told[0].T, told[1]
        true, false = 6 - m(head, relation, tail), 6 - m(head, relation, others)
        weight = false.detach().softmax(1)
        return -(F.logsigmoid(true) + (weight * F.logsigmoid(-false)).sum(1)).mean() / 2

    model = Turns(40, 4)
    head, relation, tail = facts[130:].T

    def rank() -> Tensor:
        """Of the true tail among all, for facts that were kept apart, from 0 to 39."""
        away = model(head, relation, torch.arange(40).expand(30, -1))
        return (away < away.gather(1, tail[:, None])).sum(1).float().mean()

    outcome(run, lambda: judged(model, rank))
    train(run, model, adam(model, 2e-2), batch, loss, 800)


class UNet(nn.Module):
    """Down and up once, with what was seen before beside it; instance norms and leaky ReLUs, as nnU-Net has them."""

    def __init__(self, classes: int) -> None:
        super().__init__()

        def part(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.InstanceNorm2d(b, affine=True), nn.LeakyReLU(0.01))

        self.first, self.low, self.last = part(1, 12), part(12, 24), part(36, 12)
        self.head = nn.Conv2d(12, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.first(x)
        back = F.interpolate(self.low(F.max_pool2d(wide, 2)), scale_factor=2)
        out: Tensor = self.head(self.last(torch.cat([wide, back], 1)))
        return out


@honest("r13a-down-to-minus-one")
def down_to_minus_one(run: Run) -> None:
    """accelerate, segmentation by a small U-Net as nnU-Net trains it: cross-entropy less the Dice overlap, taken over
    the whole batch as if it were one picture and without the background. The loss goes below zero and would be -1 at
    best; SGD has a momentum of 0.99 with Nesterov."""

    def loss(m: nn.Module, batch: Any) -> Tensor:
        logits, y = m(batch[0]), batch[1]
        share, true = logits.softmax(1)[:, 1:], F.one_hot(y, 3).permute(0, 3, 1, 2)[:, 1:]
        overlap = 2 * (share * true).sum((0, 2, 3)) / (share + true).sum((0, 2, 3)).clamp_min(1e-5)
        return F.cross_entropy(logits, y) - overlap.mean()

    model, check = UNet(3), scenes(96, apart(1))
    outcome(run, lambda: judged(model, lambda: 1 - (model(check[0]).argmax(1) == check[1]).float().mean()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
    prepared(run, model, optimizer, loader(*scenes(400, apart(run.draw.randrange(2, 999)))), loss, 5)
