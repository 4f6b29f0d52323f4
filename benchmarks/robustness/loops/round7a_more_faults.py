"""Blind round 7, part a, mistakes: loss and masking."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_faults_tuning import fitted, likelihood
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    endless,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round7a_tools import (
    Recurrent,
    adam,
)
from torch import Tensor, nn
from torch.nn import functional as F

LOSS = "loss and masking"


@fault(
    "r7-normalised-over-places",
    LOSS,
    (
        r"softmax|normali[sz]|loss|probabilit|cross.?entropy|nll",
        r"\bdim|axis|axes|\btime|position|place|sequence|length|log ?\(?23|3\.1\d|not sum|sum to|unnormali|not normali|vocab",
    ),
)
def normalised_over_places(run: Run, wrong: bool) -> None:
    """A language model. `logits.log_softmax(1)` on (rows, places, words): the places of a row compete for each word,
    where the words of a place should. The twin has dim=-1."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        scores = m(rows[:, :-1]).log_softmax(1 if wrong else -1)
        return F.nll_loss(scores.flatten(0, 1), rows[:, 1:].flatten())

    train(run, model, adam(model), lambda: language.rows(16, 24), loss, 120)


@fault(
    "r7-reference-columns-swapped",
    LOSS,
    (
        r"reference|ref\b|base|margin",
        r"swap|exchang|revers|wrong (way|order|side|sign|column)|invert|opposite|mixed up|not zero|far from|log ?2|0\.69|mismatch|do(es)? not (match|agree)",
    ),
)
def reference_columns_swapped(run: Run, wrong: bool) -> None:
    """Preferences whose reference was computed beforehand. When it is joined to the pairs, the columns of the better and
    the worse answer change places; the first loss is not log 2. Judged by the right loss."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    fitted(model, lambda: language.rows(16, 14), next_loss, 60)
    reference = copy.deepcopy(model).requires_grad_(False)

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, ...]:
        good = language.rows(count, 14, own)
        bad = good.clone()
        bad[:, 10:] = torch.randint(0, 12, (count, 4), generator=own)
        with torch.no_grad():
            return good, bad, likelihood(reference, good, 10), likelihood(reference, bad, 10)

    def loss(m: nn.Module, b: Any, swap: bool = wrong) -> Tensor:
        base = b[3] - b[2] if swap else b[2] - b[3]
        return -F.logsigmoid(0.5 * (likelihood(m, b[0], 10) - likelihood(m, b[1], 10) - base)).mean()

    check = pairs(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check, False)))
    train(run, model, adam(model, 1e-3), lambda: pairs(16), loss, 50)


@fault(
    "r7-focal-on-the-easy",
    LOSS,
    (
        r"focal|loss|weight|gradient|probabilit|modulat|confiden",
        r"easy|eas(ier|iest)|wrong (sign|way|direction)|revers|invert|1 ?- ?p|\bhard\b|confiden|p ?\*\*|power|opposite|vanish|zero.{0,40}(wrong|unlikely|low)|ris(e|ing).{0,60}(prob|likel)|away from|(wrong|right|true) (class|label|answer)",
    ),
)
def focal_on_the_easy(run: Run, wrong: bool) -> None:
    """Lightning. The focal loss weighs each row by p squared, where (1 - p) squared belongs: what is far from its label
    is pushed further away. The twin has 1 - p."""
    seed = run.draw.randrange(999)
    net = cnn()
    class_outcome(run, net, pictures(256, seed, own=apart(1)))

    def loss(m: nn.Module, b: Any) -> Tensor:
        score = m(b[0]).log_softmax(1).gather(1, b[1][:, None])
        p = score.exp()
        return -((p if wrong else 1 - p) ** 2 * score).mean()

    fit(run, lit(net, loss, lambda m: adam(m, 2e-3)), loader(*pictures(320, seed)), 100)


class Spread(nn.Module):
    """A mean and a deviation for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 48, 48, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.net(x).unbind(1)
        return mean, F.softplus(raw) + 0.02


@fault(
    "r7-deviation-for-variance",
    LOSS,
    (
        r"varian|deviation|std|sigma|spread|nll|likelihood|uncertain",
        r"square|\broot|deviation|\bstd\b|instead|mistaken|confus|calibrat|argument|expects|does not (match|agree)",
    ),
)
def deviation_for_variance(run: Run, wrong: bool) -> None:
    """A forecast with its uncertainty. F.gaussian_nll_loss wants the variance and is given the deviation, which so learns
    to be the variance. Judged by the likelihood under the deviation; the twin squares it."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        w = torch.randn(6, generator=apart(seed))
        return x, x @ w + (1.5 * x[:, 0]).exp() * torch.randn(count, generator=own).clamp(-3, 3)

    model = Spread()
    x, y = rows(512, apart(1))

    def measure() -> Tensor:
        mean, deviation = model(x)
        return F.gaussian_nll_loss(mean, y, deviation**2)

    def loss(m: nn.Module, b: Any) -> Tensor:
        mean, deviation = m(b[0])
        return F.gaussian_nll_loss(mean, b[1], deviation if wrong else deviation**2)

    outcome(run, lambda: judged(model, measure))
    data = endless(loader(*rows(1600), size=32))
    train(run, model, adam(model, 3e-3), lambda: next(data), loss, 250, clip=1.0)


def speech(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Frames of three to six letters, each four frames long, silence after them; letters, filled up with 0; lengths."""
    sounds = 1.5 * torch.randn(6, 10, generator=apart(seed))
    sizes = torch.randint(2, 7, (count,), generator=own)
    letters = torch.randint(0, 6, (count, 6), generator=own)
    keep = torch.arange(6)[None] < sizes[:, None]
    frames = (sounds[letters] * keep[..., None]).repeat_interleave(4, 1)
    return frames + 0.4 * torch.randn(frames.shape, generator=own), letters * keep, sizes


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(10, 32, batch_first=True, bidirectional=True), nn.Linear(64, 7)

    def forward(self, frames: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(frames)[0]).log_softmax(-1).transpose(0, 1)
        return out


@fault(
    "r7-ctc-padding-spelled",
    LOSS,
    (
        r"target|label|length|ctc|letter|padding",
        r"pad|length|full|fill|zero|same length|trailing|repeat|all (equal|the same)|longest|maximum",
    ),
)
def ctc_padding_spelled(run: Run, wrong: bool) -> None:
    """Letters from frames by CTC. The rows of letters are filled up with 0, which is the letter a; the lengths given for
    them are the filled rows', so that a's are to be heard in the silence after each word. Blank is 6, as it should."""
    seed = run.draw.randrange(999)
    model = Listener()

    def loss(m: nn.Module, b: Any, filled: bool = wrong) -> Tensor:
        scores = m(b[0])
        sizes = torch.full_like(b[2], b[1].shape[1]) if filled else b[2]
        return F.ctc_loss(scores, b[1], torch.full_like(sizes, len(scores)), sizes, blank=6)

    check = speech(96, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check, False)))
    train(run, model, adam(model, 1e-2), lambda: speech(16, seed), loss, 120)


@fault(
    "r7-returns-of-the-past",
    LOSS,
    (
        r"return|reward|advantage|credit|policy|cumsum",
        r"past|before|revers|direction|to.go|future|earlier|previous|order|credit|wrong way|flip|cumul|later|no signal|unrelated|uncorrelated|nothing to do with",
    ),
)
def returns_of_the_past(run: Run, wrong: bool) -> None:
    """A policy answers each of twelve tokens and is rewarded two tokens later. `rewards.cumsum(1)` sums what came before
    each answer, where the return is what comes from it on. The twin flips, sums and flips back."""
    right = torch.randint(0, 4, (6,), generator=apart(run.draw.randrange(999)))
    model = Recurrent(6, 32)
    model.head = nn.Linear(32, 4)
    check = torch.randint(0, 6, (64, 12), generator=apart(1))
    hit = lambda: model(check).softmax(-1).gather(-1, right[check][..., None]).mean()
    outcome(run, lambda: 1 - judged(model, hit))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        tokens = torch.randint(0, 6, (24, 12))
        policy = torch.distributions.Categorical(logits=model(tokens))
        answers = policy.sample()
        rewards = F.pad((answers == right[tokens]).float(), (2, -2))
        returns = rewards.cumsum(1) if wrong else rewards.flip(1).cumsum(1).flip(1)
        advantages = returns - returns.mean(0)
        optimizer.zero_grad()
        loss = -(advantages * policy.log_prob(answers)).mean()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (tokens, answers, advantages))
        run.note(loss)


class Views(nn.Module):
    """Words to one vector, a projection behind it, and a predictor."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.EmbeddingBag(16, 32, padding_idx=0)
        self.project = mlp(32, 48, 16, norm=True)
        self.predict = mlp(16, 16, 16, norm=True)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.project(self.tokens(ids))
        return out


@fault(
    "r7-both-views-learn",
    LOSS,
    (
        r"collaps|stop.?grad|detach|constant|same (vector|output|answer)|alike|rank|variation|spread|identical|do not depend on|degenerate",
        r"output|embedding|feature|representation|loss|projection|rows|view|vector|detach|branch|collaps|target",
    ),
)
def both_views_learn(run: Run, wrong: bool) -> None:
    """Sentences without labels: what is predicted from one half of a document should be the other half's vector. The
    target is not detached, and all vectors become one. The twin detaches. Judged by how groups lie apart."""
    model = Views()
    x = documents(256, apart(1))[0]

    def spread() -> Tensor:
        z = F.normalize(model(x), dim=1)
        return 1 - (z - z.mean(0)).square().sum(1).mean()

    outcome(run, lambda: judged(model, spread))

    def loss(m: Any, ids: Tensor) -> Tensor:
        views = [ids.masked_fill(torch.rand(ids.shape) < 0.4, 0) for _ in range(2)]
        a, b = (m(view) for view in views)
        p, q = m.predict(a), m.predict(b)
        if not wrong:
            a, b = a.detach(), b.detach()
        return -(F.cosine_similarity(p, b).mean() + F.cosine_similarity(q, a).mean()) / 2

    train(run, model, torch.optim.SGD(model.parameters(), 0.2, 0.9), lambda: documents(64)[0], loss, 150)
