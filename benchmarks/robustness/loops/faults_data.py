"""Mistakes in batches, labels and masks."""

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, add_fault, fault
from benchmarks.robustness.loops.plan import Plan, swap
from benchmarks.robustness.loops.text import EOS, MASK, PAD, corpus, crops, padded, sentences, some, topics
from benchmarks.robustness.loops.training import adamw, gpt2, next_token, update
from benchmarks.robustness.loops.transformer import Classifier, Transformer
from torch.nn import functional as F

swap(
    "labels-not-shifted",
    "data",
    "the labels are the inputs themselves",
    r"shift|own input|copy",
    Plan(),
    Plan(batch=lambda b: (b[0], b[0])),
)

swap(
    "labels-are-the-past",
    "data",
    "torch.roll the wrong way: each position is taught the token before it",
    r"previous|before it|preceding|offset -1|wrong (way|direction)|backward|past",
    Plan(),
    Plan(batch=lambda b: (b[0], b[0].roll(1, 1))),
)

swap(
    "targets-of-other-rows",
    "data",
    "inputs shuffled within the batch, targets not",
    r"(target|label).*(unrelated|another row|other row|not (the )?next|no offset|shuffl|belong|align|match)|row",
    Plan(),
    Plan(batch=lambda b: (b[0][torch.randperm(len(b[0]))], b[1])),
)


@fault(
    "labels-shifted-twice",
    "data",
    r"twice|shift.*(also|already|again|inside|two)|(offset|token) 2|after (the )?next|two ",
)
def _(run: Run, wrong: bool) -> None:
    """Labels shifted in the data for a GPT-2 that shifts them itself."""
    model, tokens = gpt2(), corpus(1)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        x, y = crops(tokens)
        labels = y if wrong else x
        loss = model(input_ids=x, labels=labels).loss
        update(run, doctor, optimizer, loss, {"input_ids": x, "labels": labels})


def documents_loop(run: Run, wrong: str, left: bool = False) -> None:
    """A GPT-2 on padded documents; `wrong` names what is forgotten."""
    fill = EOS if "end" in wrong else PAD
    model, documents = gpt2(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0), sentences(2)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        ids, mask = padded(some(documents), left, fill)
        labels = ids.masked_fill(mask == 0, -100)
        if wrong == "pad taught":
            labels = ids.clone()
        if wrong == "end of text":
            labels = ids.masked_fill(ids == fill, -100)
        batch = {"input_ids": ids, "labels": labels, "attention_mask": mask}
        if wrong == "no attention mask":
            del batch["attention_mask"]
        if wrong == "mask inverted":
            batch["attention_mask"] = 1 - mask
        if left:
            batch["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        loss = model(**batch).loss
        update(run, doctor, optimizer, loss, batch)


def forgotten(
    name: str, what: str, wrong: str, wanted: str | tuple[str, ...], right: str = "", left: bool = False
) -> None:
    add_fault(name, "data", what, wanted, lambda run, bad: documents_loop(run, wrong if bad else right, left))


forgotten("padding-taught", "padding is a target like any token", "pad taught", r"pad")

forgotten(
    "left-padding-attended",
    "left padding without an attention mask",
    "no attention mask",
    (r"pad", r"attend|attention|mask"),
    left=True,
)

forgotten(
    "mask-inverted",
    "the attention mask is 1 for padding",
    "mask inverted",
    (r"mask", r"invert|revers|opposite|pad|wrong"),
)

forgotten(
    "end-never-taught",
    "pad_token = eos_token, and every eos in the labels set to -100",
    "end of text",
    (r"\bend|eos|stop", r"never|not taught|ignor|-100|masked"),
    right="the end as padding",
)


def picked(run: Run, wrong: bool, what: str) -> None:
    """A classifier of sentences; one thing is wrong."""
    documents = sentences(3)
    model = Classifier(classes=4, pool=("very-last" if wrong else "last") if what == "pool" else "mean")
    optimizer = adamw(model, 2e-3)
    doctor = run.watch(model, optimizer)
    if what == "sorted":
        documents = [documents[i] for i in topics(documents).argsort(stable=True).tolist()]
        every = max(1, len(documents) // (80 * 16))
    for step in range(80):
        batch = some(documents, 16)
        if what == "sorted" and wrong:
            at = step * 16 * every % len(documents)
            batch = documents[at : at + 16]
        ids, mask = padded(batch)
        truth = topics(batch)
        logits = model(ids, mask)
        if what == "sigmoid":
            target = F.one_hot(truth, 4).float()
            loss = F.binary_cross_entropy_with_logits(logits.sigmoid() if wrong else logits, target)
        else:
            loss = F.cross_entropy(logits, truth)
        update(run, doctor, optimizer, loss, {"input_ids": ids, "attention_mask": mask, "labels": truth})


for name, category, what, about, wanted in (
    ("padding-pooled", "data", "the class is read at the last column, which is padding", "pool", r"pad"),
    (
        "sorted-by-class",
        "data",
        "no shuffling: a batch has one class",
        "sorted",
        r"shuffl|sorted|order|one class|same (class|label)",
    ),
    ("sigmoid-before-loss", "loss", "BCE with logits of sigmoid's output", "sigmoid", r"sigmoid|probabilit"),
):
    add_fault(name, category, what, wanted, lambda run, bad, about=about: picked(run, bad, about))


@fault("same-batch-forever", "data", r"same (batch|rows|data|token)|repeat|identical|again|one batch|seen")
def _(run: Run, wrong: bool) -> None:
    """next(iter(loader)) inside the loop, without shuffling: one batch for ever."""
    tokens, model = corpus(4), Transformer()
    rows = tokens[: len(tokens) // 33 * 33].view(-1, 33)
    dataset: Any = torch.utils.data.TensorDataset(rows)
    loader: Any = torch.utils.data.DataLoader(dataset, batch_size=8)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    batches: Iterator[Any] = iter(loader)
    for _ in range(100):
        (block,) = next(iter(loader)) if wrong else next(batches)
        x, y = block[:, :-1], block[:, 1:]
        loss = next_token(model(x), y)
        update(run, doctor, optimizer, loss, (x, y))


@fault("workers-share-a-seed", "data", r"same (batch|rows|data|token|micro)|repeat|identical|duplicat|copies|seen")
def _(run: Run, wrong: bool) -> None:
    """Four workers with NumPy's one seed: the four micro-batches of a step are the same."""
    tokens, model = corpus(5), Transformer()
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        first = crops(tokens, 4)
        micro = [first if wrong else crops(tokens, 4) for _ in range(4)]
        optimizer.zero_grad()
        total = 0.0
        for x, y in micro:
            loss = next_token(model(x), y) / 4
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        doctor.step(total, micro)
        run.note(total)


@fault("nothing-masked-in-mlm", "data", r"copy|own input|leak|mask|visible|shift|itself")
def _(run: Run, wrong: bool) -> None:
    """Masked language model whose inputs keep the tokens they should hide."""
    model, tokens = Transformer(causal=False), corpus(6)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        x, _ = crops(tokens)
        hidden = torch.rand(x.shape) < 0.2
        seen, labels = x if wrong else x.masked_fill(hidden, MASK), x.masked_fill(~hidden, -100)
        loss = F.cross_entropy(model(seen).flatten(0, 1), labels.flatten())
        update(run, doctor, optimizer, loss, {"input_ids": seen, "labels": labels})


@fault(
    "no-target-left",
    "data",
    r"ignor|-100|no (target|label)|every (target|label)|all (the )?(target|label)|empty|0/0|divi",
)
def _(run: Run, wrong: bool) -> None:
    """Long prompts are cut at the context's end: now and then nothing of the answers is left, and the mean is 0/0."""
    model, tokens = Transformer(), corpus(7)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for step in range(60):
        x, y = crops(tokens, 2)
        prompt = 32 if wrong and step == 30 else int(torch.randint(8, 24, ()))
        labels = y.masked_fill(torch.arange(32) < prompt, -100)
        loss = F.cross_entropy(model(x).flatten(0, 1), labels.flatten())
        update(run, doctor, optimizer, loss, (x, labels))
