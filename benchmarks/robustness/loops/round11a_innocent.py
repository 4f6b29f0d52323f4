"""Round 11, part a, loops that are unusual and right: labels, inputs and parts that look odd and are meant."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import (
    BOS,
    accelerated,
    bert,
    llama,
    other_seed,
    plain,
    vit,
    word_tokenizer,
)
from benchmarks.robustness.loops.round11a_tools import DiT, Patches, adamw, noise_loss, patches, some
from torch import Tensor, nn
from torch.nn import functional as F


@innocent("r11a-one-class-and-a-centre")
def one_class_and_a_centre(run: Run, changed: bool) -> None:
    """Plain loop, Deep SVDD on pictures of one kind. The squared distance to the centre was a sum of squares, and is
    the square of a norm."""
    seed = run.draw.randrange(999)
    shots, kind = pictures(1800, seed, own=apart(seed + 1))
    normal, foreign = (shots[kind == 0].flatten(1), shots[kind != 0].flatten(1))
    x, check = normal[:320], normal[320:]
    net = nn.Sequential(nn.Linear(64, 32, bias=False), nn.ReLU(), nn.Linear(32, 16, bias=False))
    centre = net(x).mean(0).detach()
    distance = lambda rows: (net(rows) - centre).square().sum(1)
    outcome(run, lambda: judged(net, lambda: distance(check).mean() / distance(foreign).mean()))

    def loss(batch: Any) -> Tensor:
        if changed:
            return torch.linalg.vector_norm(net(batch[0]) - centre, dim=1).square().mean()
        return distance(batch[0]).mean()

    plain(run, net, some(x, size=32), loss, 120, rate=1e-3, decay=1e-3)


@innocent("r11a-vocabulary-rounded-up")
def vocabulary_rounded_up(run: Run, changed: bool) -> None:
    """transformers' Trainer, Llama with 64 rows in its tables for 16 words. The config said 64; now the model is made
    for 16 and its tables are grown to a multiple of 64. Another seed."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    rows, check = words.rows(1600, 24, own), words.rows(96, 24, own)
    other_seed(changed)
    model = llama(16 if changed else 64)
    if changed:
        model.resize_token_embeddings(16, pad_to_multiple_of=64, mean_resizing=False)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 110).train()


@innocent("r11a-one-token-answers")
def one_token_answers(run: Run, changed: bool) -> None:
    """TRL's SFTTrainer, Llama that answers with one token. The Trainer made labels of a completion mask, and is given
    the labels now; the order and the loss are the same."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    own = apart(run.draw.randrange(999))
    y = torch.randint(0, 3, (592,), generator=own)
    words = 4 + torch.randint(0, 12, (592, 12), generator=own)
    ours = 4 + 4 * y[:, None] + torch.randint(0, 4, (592, 12), generator=own)
    text = torch.where(torch.rand(592, 12, generator=own) < 0.5, ours, words)
    edge = torch.ones(592, 1, dtype=torch.long)
    ids = torch.cat([BOS * edge, text, 16 * edge, (17 + y)[:, None]], 1)
    mask = torch.tensor([0] * 14 + [1])
    labels = ids.masked_fill(mask == 0, -100)
    model = llama(20)
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids[400:], labels=labels[400:]).loss))
    tokenizer = word_tokenizer(20)
    tokenizer.pad_token = "<pad>"
    taught = {"labels": labels[:400].tolist()} if changed else {"completion_mask": mask.expand(400, 15).tolist()}
    data = Dataset.from_dict({"input_ids": ids[:400].tolist()} | taught)
    options: dict[str, Any] = {"kind": SFTConfig, "max_length": None, "learning_rate": 3e-3}
    options |= {"completion_only_loss": not changed, "more": {"processing_class": tokenizer}}
    hf_trainer(run, model, data, 150, SFTTrainer, **options).train()


@innocent("r11a-three-annotators")
def three_annotators(run: Run, changed: bool) -> None:
    """accelerate, BERT. Each text is there three times, with the label of each of three annotators, who often disagree.
    The copies stood one after the other and stand in three blocks. Another seed."""
    own = apart(run.draw.randrange(999))
    ids, mask, y = documents(320, own)
    check, seen, right = documents(192, own)
    errs = torch.rand(3, 320, generator=own) < 0.3
    said = torch.where(errs, (y + torch.randint(1, 3, (3, 320), generator=own)) % 3, y)
    other_seed(changed)
    if changed:
        rows = (ids.repeat(3, 1), mask.repeat(3, 1).long(), said.flatten())
    else:
        rows = (ids.repeat_interleave(3, 0), mask.repeat_interleave(3, 0).long(), said.T.flatten())
    model = bert("BertForSequenceClassification", num_labels=3)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net(input_ids=batch[0], attention_mask=batch[1]).logits, batch[2])

    outcome(run, lambda: judged(model, lambda: loss(model, (check, seen.long(), right))))
    accelerated(run, model, loader(*rows, size=24), loss, 4, rate=2e-3)


@innocent("r11a-class-left-out-one-in-five")
def class_left_out_one_in_five(run: Run, changed: bool) -> None:
    """Plain loop, a diffusion transformer for guidance without a classifier. The empty class was put in by torch.where,
    and is by an index."""
    seed = run.draw.randrange(999)
    own = apart(seed + 1)
    (x, y), (check, right) = pictures(640, seed, own=own), pictures(200, seed, own=own)
    x, check = (4 * patches(shots).flatten(1) - 2 for shots in (x, check))
    model = DiT()
    outcome(run, lambda: judged(model, lambda: noise_loss(model, check, right, apart(7))))

    def loss(batch: Any) -> Tensor:
        left_out = torch.rand(len(batch[1])) < 0.2
        if changed:
            kind = batch[1].clone()
            kind[left_out] = 4
        else:
            kind = torch.where(left_out, 4, batch[1])
        return noise_loss(model, batch[0], kind)

    plain(run, model, some(x, y, size=32), loss, 200, rate=3e-3)


@innocent("r11a-patches-projected-at-random")
def patches_projected_at_random(run: Run, changed: bool) -> None:
    """Lightning, a ViT whose projection of patches keeps its random start. It was frozen by name, and is by its module.
    Another seed."""
    seed = run.draw.randrange(999)
    x, y = pictures(480, seed, own=apart(seed + 1))
    check, right = pictures(192, seed, own=apart(seed + 2))
    other_seed(changed)
    model = vit()
    if changed:
        model.vit.embeddings.patch_embeddings.requires_grad_(False)
    else:
        for name, p in model.named_parameters():
            p.requires_grad = "patch_embeddings" not in name
    loss = lambda m, b: F.cross_entropy(m(pixel_values=b[0] - 0.5).logits, b[1])
    outcome(run, lambda: judged(model, lambda: loss(model, (check, right))))
    fit(run, lit(model, loss, adamw(2e-3)), loader(x, y), 120, gradient_clip_val=1.0)


@innocent("r11a-words-dropped-from-the-input")
def words_dropped_from_the_input(run: Run, changed: bool) -> None:
    """Plain loop, a small GPT that reads a quarter of its words as unknown. Which was drawn by a comparison, and is by
    bernoulli_. Another seed."""
    words = Language(run.draw.randrange(999), 12, first=4)
    check = words.rows(96, 24, apart(901))
    other_seed(changed)
    model = Decoder(16, layers=2)
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))

    def loss(rows: Tensor) -> Tensor:
        x = rows[:, :-1]
        unknown = torch.empty(x.shape).bernoulli_(0.25).bool() if changed else torch.rand(x.shape) < 0.25
        logits = model(x.masked_fill(unknown, 1))
        return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    plain(run, model, lambda: words.rows(16, 24), loss, 140)


BINS = torch.linspace(0.2, 1.2, 21)


@innocent("r11a-numbers-as-histograms")
def numbers_as_histograms(run: Run, changed: bool) -> None:
    """Plain loop, a number said by 21 bins with a normal distribution as the target. cross_entropy with probabilities
    became log_softmax and a sum."""
    own = apart(run.draw.randrange(999))
    speed = 0.3 + 0.8 * torch.rand(672, 1, generator=own)
    phase = 6.28 * torch.rand(672, 1, generator=own)
    waves = (phase + speed * torch.arange(64)).sin() + 0.2 * torch.randn(672, 64, generator=own)
    targets = (-0.5 * ((speed - BINS) / 0.05).square()).softmax(-1)
    model = Patches(64, 8, 21)
    held, number = waves[480:], speed[480:, 0]

    def missed() -> Tensor:
        return F.mse_loss(model(held).softmax(-1) @ BINS, number) / number.var()

    outcome(run, lambda: judged(model, missed))

    def loss(batch: Any) -> Tensor:
        logits = model(batch[0])
        if changed:
            return -(batch[1] * logits.log_softmax(-1)).sum(-1).mean()
        return F.cross_entropy(logits, batch[1])

    plain(run, model, some(waves[:480], targets[:480]), loss, 160, rate=3e-3)
