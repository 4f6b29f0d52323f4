"""Round 25c, mistakes in pairs and in terms: who belongs together, who teaches whom, what a row counts."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    examples,
    fit,
    hf_arguments,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    watching,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round25c_parts import (
    Clicks,
    Listening,
    Shape,
    Voice,
    marks,
    pitches,
    slip,
    strangers_next,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r25c-views-in-halves-labels-in-pairs")
def views_in_halves_labels_in_pairs(run: Run, wrong: bool) -> None:
    """Lightning, a CNN that learns directions from two noisy views of each picture and from classes: all views of a
    class should be near one another. The first views of a batch come first and the second behind them, but each label
    is repeated at once, as if the two views of a picture stood side by side: most views have another picture's label.
    The twin repeats the labels as a whole. Judged by how often the nearest of other pictures is of another class."""
    seed = run.draw.randrange(999)
    net = Shape()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        views = m(torch.cat([x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)]))
        labels = y.repeat_interleave(2) if wrong else y.repeat(2)
        self_mask = torch.eye(len(views), dtype=torch.bool)
        scores = (views @ views.T / 0.2).masked_fill(self_mask, -1e9)
        alike = (labels[:, None] == labels) & ~self_mask
        return -(scores.log_softmax(1) * alike).sum(1).div(alike.sum(1)).mean()

    x, y = marks(384, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: strangers_next(net(x), y)))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*marks(640, seed), size=32), 100)


@slip("r25c-farthest-stranger-for-the-nearest")
def farthest_stranger_for_the_nearest(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions that give a sound a direction. For each sound of a batch the farthest of its
    kind and the nearest stranger should be apart by a margin; the farthest stranger is taken, as for its own kind, and
    once that is far enough nothing is taught any more. The twin takes the nearest. Judged by how often the nearest of
    other sounds is of another kind."""

    def loss(found: Tensor, y: Tensor) -> Tensor:
        distance = (2.0002 - 2 * found @ found.T).sqrt()
        alike = y[:, None] == y
        own = distance.masked_fill(~alike, -1).amax(1)
        stranger = distance.masked_fill(alike, -1).amax(1) if wrong else distance.masked_fill(alike, 9).amin(1)
        return (own - stranger + 0.3).relu().mean()

    net = WithLoss(Voice(), loss)
    x, y = pitches(384, apart(1))
    outcome(run, lambda: judged(net, lambda: strangers_next(net(x)["logits"], y)))
    sounds, kinds = pitches(960)
    settings: dict[str, Any] = {"per_device_train_batch_size": 32}
    hf_trainer(run, net, examples(x=sounds, labels=kinds), 120, **settings).train()


@slip("r25c-cosine-along-the-places")
def cosine_along_the_places(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a GRU that learns to say what a transformer has in its last layer at each place. One less
    the cosine of the two is taken along the first dimension behind the rows, which is the default and here the place in
    the text: each number may have a size of its own. The twin takes it along the numbers of a place. Judged by one less
    that on other texts."""
    language = Language(run.draw.randrange(999))
    teacher = Decoder(12, layers=1)
    taught(teacher, lambda: language.rows(32, 20), next_loss, 60)
    teacher.head = nn.Identity()  # type: ignore[assignment]
    teacher.eval()

    def states(ids: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = teacher(ids)
        return out

    def loss(found: Tensor, labels: Tensor) -> Tensor:
        alike = F.cosine_similarity(found, labels) if wrong else F.cosine_similarity(found, labels, dim=-1)
        return 1 - alike.mean()

    net = WithLoss(Listening(12), loss)
    check = language.rows(96, 16, apart(1))
    told = states(check)
    outcome(run, lambda: judged(net, lambda: 1 - F.cosine_similarity(net(check)["logits"], told, dim=-1).mean()))
    ids = language.rows(640, 16)
    hf_trainer(run, net, examples(x=ids, labels=states(ids)), 120).train()


@slip("r25c-weighed-by-the-share-kept")
def weighed_by_the_share_kept(run: Run, wrong: bool) -> None:
    """accelerate, vectors of users and items that say how likely a click is. One in eight of those who did not click is
    kept, and should count eight times to make up for it; it counts an eighth. The twin lets it count eight times.
    Judged by the cross-entropy on other pairs, all of them kept."""
    users, items, kept = 40, 60, 1 / 8
    own = apart(run.draw.randrange(999))
    taste = torch.randn(users, 3, generator=own) @ torch.randn(3, items, generator=own)
    odds = taste - 3 + 0.7 * torch.randn(items, generator=own)
    net = Clicks(users, items)

    def shown(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        user, item = (torch.randint(0, n, (count,), generator=own) for n in (users, items))
        return user, item, (torch.rand(count, generator=own) < odds[user, item].sigmoid()).float()

    user, item, clicked = shown(4000, own)
    outcome(run, lambda: judged(net, lambda: F.binary_cross_entropy_with_logits(net(user, item), clicked)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        user, item, clicked = batch
        weight = torch.where(clicked > 0, 1.0, kept if wrong else 1 / kept)
        each = F.binary_cross_entropy_with_logits(m(user, item), clicked, reduction="none")
        return (weight * each).sum() / weight.sum()

    log = shown(20000)
    used = (log[2] > 0) | (torch.rand(len(log[2])) < kept)
    some = [column[used][:3840] for column in log]
    prepared(run, net, adam(net, 2e-2), loader(*some, size=64), loss, 2)


@slip("r25c-margin-as-a-head-start")
def margin_as_a_head_start(run: Run, wrong: bool) -> None:
    """TRL's RewardTrainer, a small GPT-2 that learns from pairs of answers which is better. By how many marks the
    better one was better is the margin that the difference of rewards should exceed; it is given as the marks of the
    worse less those of the better, below nought, so that a pair counts as told apart before it is, and the clearer
    the more. The twin gives the better less the worse. Judged by the loss with the right margins on other pairs."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
    from transformers import GPT2Config, GPT2ForSequenceClassification

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    shape: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 16}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 1}
    shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    net = GPT2ForSequenceClassification(GPT2Config(**shape))
    worth = torch.randn(16, generator=apart(run.draw.randrange(999)))

    def compared(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The better and the worse of two answers of ten words 4 to 15, and by how much."""
        answers = torch.randint(4, 16, (2, count, 10), generator=own)
        marks = worth[answers].sum(2) + 0.5 * torch.randn(2, count, generator=own)
        first = (marks[0] > marks[1])[:, None]
        better, worse = torch.where(first, answers[0], answers[1]), torch.where(first, answers[1], answers[0])
        return better, worse, (marks[0] - marks[1]).abs()

    better, worse, margin = compared(512, apart(1))

    def doubt() -> Tensor:
        apart_by = net(input_ids=better).logits - net(input_ids=worse).logits
        return -F.logsigmoid(apart_by.squeeze(1) - margin).mean()

    outcome(run, lambda: judged(net, doubt))
    chosen, rejected, by = compared(1600)
    columns = {"chosen_ids": chosen.tolist(), "rejected_ids": rejected.tolist()}
    data = datasets.Dataset.from_dict(columns | {"margin": (-by if wrong else by).tolist()})
    told, telling = watching(run, trl.RewardTrainer)
    settings: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "learning_rate": 2e-3}
    arguments = hf_arguments(run, 100, trl.RewardConfig, **settings)
    trainer = told(model=net, args=arguments, train_dataset=data, processing_class=word_tokenizer(16))
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
