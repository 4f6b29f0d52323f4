"""Round 19, part b: mistakes in losses, their reduction and their penalties."""

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
    lit,
    loader,
    next_loss,
    outcome,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round18_parts import topics
from benchmarks.robustness.loops.round19b_parts import (
    Counter,
    Twin,
    TwoTowers,
    pairs_of_texts,
    rectangles,
    scenes,
    slip,
    visits,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r19b-scale-left-a-logarithm")
def scale_left_a_logarithm(run: Run, wrong: bool) -> None:
    """Plain loop, pictures and captions by contrast. The learned scale is kept as a logarithm, 2.66, and multiplies the
    cosines as it is; it should be raised to its exponential, 14.3, first, as the twin does."""
    seed = run.draw.randrange(999)
    net = TwoTowers()

    def scores(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen, read = m(*batch)
        product: Tensor = (m.logit_scale if wrong else m.logit_scale.exp()) * seen @ read.T
        return product

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        found, own = scores(m, batch), torch.arange(len(batch[0]))
        return 0.5 * (F.cross_entropy(found, own) + F.cross_entropy(found.T, own))

    check = scenes(64, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    train(run, net, adam(net, 2e-3), lambda: scenes(32, seed), loss, 120)


@slip("r19b-without-the-square-of-the-temperature")
def without_the_square_of_the_temperature(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT that learns from labels, a third of them wrong, and from a teacher at
    temperature four. The divergence is not multiplied by the temperature's square: its gradient is a sixteenth, and the
    labels have the word. The twin multiplies."""
    from transformers import Trainer

    shares = [1 / 3] * 3

    def texts(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        ids, y = topics(count, shares, 0.35, 12, own)
        return {"input_ids": ids, "labels": y}

    teacher, student = tiny_bert(hidden_size=48), tiny_bert()
    taught(teacher, lambda: texts(32), lambda m, batch: m(**batch).loss, 120, 3e-3)
    teacher.eval()
    check = texts(256, apart(1))
    outcome(run, lambda: judged(student, lambda: student(**check).loss))
    rows = texts(320)
    lies = torch.rand(320) < 0.5
    rows["labels"] = torch.where(lies, torch.randint(0, 3, (320,)), rows["labels"])

    class Distilling(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            out = model(**inputs)
            with torch.no_grad():
                told = teacher(input_ids=inputs["input_ids"]).logits
            apart_by = F.kl_div((out.logits / 4).log_softmax(1), (told / 4).softmax(1), reduction="batchmean")
            loss = 0.5 * out.loss + 0.5 * apart_by * (1 if wrong else 16)
            return (loss, out) if return_outputs else loss

    hf_trainer(run, student, examples(**rows), 120, Distilling, learning_rate=3e-3).train()


@slip("r19b-different-is-nought")
def different_is_nought(run: Run, wrong: bool) -> None:
    """accelerate, texts that belong together. cosine_embedding_loss wants 1 for pairs that do and -1 for pairs that do
    not; it is given 1 and 0, and pairs of label 0 cost nothing: all texts come together. The twin gives -1."""
    net = Twin()

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        label = batch[2].long() if wrong else 2 * batch[2].long() - 1
        return F.cosine_embedding_loss(m(batch[0]), m(batch[1]), label, margin=0.2)

    first, second, same = pairs_of_texts(256, apart(1))

    def errors() -> Tensor:
        return ((F.cosine_similarity(net(first), net(second)) > 0.6) != same).float().mean()

    outcome(run, lambda: judged(net, errors))
    data = loader(*pairs_of_texts(640, apart(run.draw.randrange(999))), size=32)
    prepared(run, net, adam(net), data, loss, 6)


@slip("r19b-misses-cost-less-than-alarms")
def misses_cost_less_than_alarms(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a Tversky loss for the pixels of a faint rectangle: what is missed should cost 0.7 and a
    false alarm 0.3. The two are exchanged, as in papers that name alpha and beta the other way: much is missed. The
    twin has them right."""
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 1, 3, padding=1),
    )

    def tversky(logits: Tensor, labels: Tensor, exchanged: bool = wrong) -> Tensor:
        p = logits.squeeze(1).sigmoid()
        found, missed, alarms = (part.sum((1, 2)) for part in (p * labels, (1 - p) * labels, p * (1 - labels)))
        cost = 0.3 * missed + 0.7 * alarms if exchanged else 0.7 * missed + 0.3 * alarms
        return (1 - (found + 1) / (found + cost + 1)).mean()

    x, y = rectangles(192, apart(1))
    outcome(run, lambda: judged(net, lambda: tversky(net(x), y, False)))
    x_train, y_train = rectangles(640, apart(run.draw.randrange(999)))
    hf_trainer(run, WithLoss(net, tversky), examples(x=x_train, labels=y_train), 120).train()


@slip("r19b-nearest-of-the-masked-out")
def nearest_of_the_masked_out(run: Run, wrong: bool) -> None:
    """Plain loop, sounds as vectors, a triplet loss with the hardest pairs of a batch. Distances are multiplied by the
    mask of other classes before the least is taken: it is always one of the noughts. The twin puts infinity there."""
    net = Listener(8)

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor], product: bool = wrong) -> Tensor:
        vectors = m(batch[0])
        far = torch.cdist(vectors, vectors)
        same = batch[1][:, None] == batch[1][None]
        farthest = (far * same).max(1).values
        nearest = (far * ~same).min(1).values if product else far.masked_fill(same, torch.inf).min(1).values
        return (farthest - nearest + 0.5).relu().mean()

    check = sounds(96, apart(1), 0.5)
    outcome(run, lambda: judged(net, lambda: loss(net, check, False)))
    train(run, net, adam(net, 3e-3), lambda: sounds(32, noise=0.5), loss, 120)


@slip("r19b-square-of-the-mean-gradient")
def square_of_the_mean_gradient(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT learns a second language and should keep the first (elastic weight consolidation). Its
    Fisher information is the square of the gradient of a whole batch, where the twin has the mean of the squares of
    each text's: at a trained model hardly anything is left of it, and nothing holds the weights."""
    first = Language(run.draw.randrange(999))
    second = near(first, run.draw.randrange(999))
    model = Decoder(12)
    taught(model, lambda: first.rows(16, 24), next_loss, 150)
    checks = [language.rows(96, 24, apart(901)) for language in (first, second)]
    outcome(run, lambda: judged(model, lambda: sum(next_loss(model, rows) for rows in checks) / 2))
    begun = {name: p.detach().clone() for name, p in model.named_parameters()}
    matters = {name: torch.zeros_like(p) for name, p in begun.items()}
    texts = first.rows(64, 24)
    for rows in texts.split(64 if wrong else 1):
        model.zero_grad()
        next_loss(model, rows).backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                matters[name] += p.grad**2 * len(rows) / len(texts)
    model.zero_grad()

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        held = sum((matters[name] * (p - begun[name]) ** 2).sum() for name, p in m.named_parameters())
        return next_loss(m, rows) + 20 * held

    train(run, model, adam(model, 2e-3), lambda: second.rows(16, 24), loss, 120)


@slip("r19b-rate-taken-for-its-logarithm")
def rate_taken_for_its_logarithm(run: Run, wrong: bool) -> None:
    """Lightning, the next count of a series. The network gives a rate, by softplus; poisson_nll_loss takes it for the
    logarithm of one, as it does by default: what is learned is the logarithm. The twin says log_input=False."""
    net = Counter()

    def loss(m: nn.Module, batch: list[Tensor], log: bool = wrong) -> Tensor:
        return F.poisson_nll_loss(m(batch[0]), batch[1], log_input=log)

    check = list(visits(256, apart(1)))
    outcome(run, lambda: judged(net, lambda: loss(net, check, False)))
    fit(run, lit(net, loss, lambda m: adam(m, 1e-2)), loader(*visits(640)), 120)
