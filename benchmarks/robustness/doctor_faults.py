"""Sixty mistakes in training loops, each with its twin without the mistake, and the words a right diagnosis needs."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.robustness.doctor import Run, add_fault, fault
from benchmarks.robustness.doctor_honest import adamw, gpt2, log_likelihood, pretrain, warm_cosine
from benchmarks.robustness.doctor_models import (
    EOS,
    MASK,
    PAD,
    VOCABULARY,
    Classifier,
    Transformer,
    corpus,
    crops,
    next_token,
    padded,
    sentences,
    some,
    topics,
)
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]
FUTURE = r"causal|future|later (token|position)|ahead|leak"


def identity(value: Any) -> Any:
    return value


@dataclass
class Plan:
    """What a next-token loop is made of; a fault replaces a part of it."""

    shape: dict[str, Any] = field(default_factory=dict)
    steps: int = 80
    length: int = 32
    micro: int = 1
    batch: Callable[[Batch], Batch] = identity
    loss: Callable[[Tensor, Tensor], Tensor] = next_token
    optimizer: Callable[[nn.Module], Any] = adamw
    scheduler: Callable[[Any, int], Any] = warm_cosine
    scheduler_steps: int = 1
    clip: float = 1.0
    clip_late: bool = False
    divide: bool = True
    zero: str = "before"  # the backward pass; or "between" it and the update, or "never"
    prepare: Callable[[nn.Module], Any] = identity
    after_optimizer: Callable[[nn.Module], Any] = identity
    autocast: Any = None
    mode_after: int | None = None  # the step after which a validation leaves eval mode on


def train(run: Run, plan: Plan) -> None:
    tokens = corpus(run.draw.randrange(1000))
    model = Transformer(**plan.shape)
    plan.prepare(model)
    optimizer = plan.optimizer(model)
    plan.after_optimizer(model)
    scheduler = plan.scheduler(optimizer, plan.steps)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    run.preflight(doctor, plan.batch(crops(tokens, 8, plan.length)), lambda m, b: plan.loss(m(b[0]), b[1]))
    for step in range(plan.steps):
        micro = [plan.batch(crops(tokens, 8, plan.length)) for _ in range(plan.micro)]
        if plan.zero == "before":
            optimizer.zero_grad()
        total = 0.0
        for x, y in micro:
            if plan.autocast is not None:
                with torch.autocast("cpu", plan.autocast):
                    loss = plan.loss(model(x), y)
            else:
                loss = plan.loss(model(x), y)
            (loss / plan.micro if plan.divide else loss).backward()
            total += float(loss.detach()) / plan.micro
        if plan.zero == "between":
            optimizer.zero_grad(set_to_none=False)
        if plan.clip and not plan.clip_late:
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        if plan.clip and plan.clip_late:
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        doctor.step(total, micro[0] if plan.micro == 1 else micro)
        for _ in range(plan.scheduler_steps):
            scheduler.step()
        run.note(total)
        if plan.mode_after is not None and step % 20 == 19:
            model.eval()
            with torch.no_grad():
                model(crops(tokens)[0])
            if step != plan.mode_after:
                model.train()


def swap(name: str, category: str, what: str, wanted: str | tuple[str, ...], right: Plan, wrong: Plan) -> None:
    """A fault that is one part of the next-token loop replaced."""
    add_fault(name, category, what, wanted, lambda run, slip: train(run, wrong if slip else right))


def slip(name: str, what: str, wanted: str | tuple[str, ...], kind: str = "", **shape: Any) -> None:
    """A fault in the transformer's own code; `kind` is its honest form where that is not the default."""
    swap(name, "model", what, wanted, Plan(shape=shape | {"slip": kind}), Plan(shape=shape | {"slip": name}))


# data, labels, masks

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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": x, "labels": labels})
        run.note(loss)


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": truth})
        run.note(loss)


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": seen, "labels": labels})
        run.note(loss)


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, labels))
        run.note(loss)


# losses


def nll_of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(logits.flatten(0, 1), targets.flatten())


def columns(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits flattened position by position, targets row by row."""
    return F.cross_entropy(logits.transpose(0, 1).reshape(-1, VOCABULARY), targets.reshape(-1))


def ignoring_zero(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


def zero_based(batch: Batch) -> Batch:
    return batch[0] - 4, batch[1] - 4


swap(
    "softmax-before-cross-entropy",
    "loss",
    "probabilities given to cross_entropy",
    r"softmax|probabilit",
    Plan(),
    Plan(loss=lambda z, y: next_token(z.softmax(-1), y)),
)
swap(
    "nll-of-logits",
    "loss",
    "nll_loss on logits that were never normalised",
    r"nll|log_?softmax|normali|unbounded|below (zero|0)|negative",
    Plan(),
    Plan(loss=nll_of_logits),
)
swap(
    "rows-and-columns-mixed",
    "loss",
    "logits transposed before flattening, targets not",
    r"transpos|flatten|order|align|other (row|position)|mismatch|view|reshap|not (the|its) next|row",
    Plan(),
    Plan(loss=columns),
)
swap(
    "loss-summed",
    "loss",
    "reduction='sum' at the mean's learning rate, SGD",
    r"sum|divid|mean|number of tokens|per token|256",
    Plan(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.3), clip=0.0),
    Plan(
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.3),
        clip=0.0,
        loss=lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum"),
    ),
)
swap(
    "sign-of-the-loss",
    "loss",
    "the log-likelihood is minimised, not its negative",
    r"sign|ascen|maximi|negative|negat|minus|below (zero|0)|wrong direction|uphill",
    Plan(),
    Plan(loss=lambda z, y: -next_token(z, y)),
)
swap(
    "smoothing-of-0.9",
    "loss",
    "label_smoothing=0.9, where 0.1 was meant",
    r"smooth",
    Plan(loss=lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=0.1)),
    Plan(loss=lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=0.9)),
)
swap(
    "a-real-token-ignored",
    "loss",
    "ignore_index=0, where 0 is the space and there is no padding",
    (r"ignor|never taught|not taught|weight", r"\b0\b|token|class|index"),
    Plan(batch=zero_based),
    Plan(batch=zero_based, loss=ignoring_zero),
)


@fault(
    "dpo-reference-moves",
    "loss",
    r"reference|same (model|object|weights)|0\.69|constant|margin|log ?2|not (fall|move|change)|stuck|flat",
)
def _(run: Run, wrong: bool) -> None:
    """The reference of DPO is the policy itself, not a copy: the margin is always zero."""
    policy = Transformer()
    pretrain(policy, corpus(1))
    reference = policy if wrong else copy.deepcopy(policy).requires_grad_(False)
    documents = sentences(1)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4, weight_decay=0.0)
    doctor = run.watch(policy, optimizer)
    for _ in range(80):
        good = some(documents, 6)
        ids, mask = padded(good + [torch.cat([d[:4], d[4:-1].flip(0), d[-1:]]) for d in good])
        ours = log_likelihood(policy, ids, mask)
        with torch.no_grad():
            theirs = log_likelihood(reference, ids, mask)
        loss = -F.logsigmoid(0.1 * ((ours - theirs)[:6] - (ours - theirs)[6:])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask})
        run.note(loss)


@fault("kl-of-probabilities", "loss", r"\bkl\b|log|probabilit|negative|below (zero|0)")
def _(run: Run, wrong: bool) -> None:
    """Distillation: F.kl_div given the student's probabilities, where it wants their logarithms."""
    teacher, tokens = Transformer(), corpus(1)
    pretrain(teacher, tokens)
    teacher.requires_grad_(False)
    student = Transformer(layers=1)
    optimizer = adamw(student)
    doctor = run.watch(student, optimizer)
    for _ in range(80):
        x, y = crops(tokens)
        logits = student(x)
        given = logits.softmax(-1) if wrong else logits.log_softmax(-1)
        loss = F.kl_div(given.flatten(0, 1), teacher(x).softmax(-1).flatten(0, 1), reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


# the model

slip("no-mask", "attention without a causal mask", FUTURE)
slip("mask-other-triangle", "triu in place of tril", FUTURE)
slip("masked-with-zero", "masked scores set to 0, not to minus infinity", FUTURE)
slip(
    "mask-after-softmax",
    "the mask multiplies softmax's output, whose rows no longer sum to one",
    FUTURE + r"|sum to|after (the )?softmax",
)
slip("softmax-over-queries", "softmax along the queries' axis", FUTURE + r"|softmax|axis|dim\b|sum to")
slip(
    "heads-by-view",
    "heads split by view, without a transpose: tokens are mixed",
    FUTURE + r"|head|transpos|view|reshap",
)
slip("norm-over-time", "layer norm along the sequence", FUTURE + r"|norm")
slip(
    "batch-norm",
    "batch norm in a causal model: statistics of other rows and later tokens",
    FUTURE + r"|batch ?norm|other rows|across",
)
slip("positions-all-zero", "every position gets position 0's embedding", r"position", positions="learned", layers=1)
slip("rope-on-queries-only", "keys are not rotated", r"rope|rotary|rotat|position|key", positions="rope")
slip(
    "constant-init",
    "all linear layers start at one constant",
    r"symmetr|constant|identical|same (value|start|row)|equal|init|duplicate",
)
slip("dead-relu", "ReLU's biases start at -8", r"dead|relu|never (active|fire)|zero|unit|inactive", kind="honest-relu")
slip(
    "hidden-detached",
    "hidden states detached before the head",
    r"detach|no gradient|without (a )?gradient|grad|not trained|frozen|cut",
)
swap(
    "init-of-1",
    "model",
    "all weights drawn with standard deviation 1, head tied",
    r"init|standard deviation|\bstd|too large|first loss|initial loss|ln|log\(|uniform|chance",
    Plan(shape={"tied": True}),
    Plan(shape={"tied": True, "init": 1.0}),
)
swap(
    "dropout-of-0.9",
    "model",
    "dropout=0.9, where the share kept was meant",
    r"dropout|drop",
    Plan(shape={"dropout": 0.1}),
    Plan(shape={"dropout": 0.9}),
)

# optimizers and schedules


def new_head(model: nn.Module) -> None:
    model.head = nn.Linear(32, VOCABULARY, bias=False)


def constant(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def from_zero(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))


def adam_with(**options: Any) -> Callable[[nn.Module], Any]:
    return lambda model: torch.optim.AdamW(model.parameters(), **({"lr": 2e-3, "weight_decay": 0.0} | options))


STALE = r"optimizer|not (in|held)|stale|replaced|never (updated|changed)|holds"
swap(
    "head-replaced-too-late",
    "optimizer",
    "the head is replaced after the optimizer was made",
    STALE,
    Plan(optimizer=adam_with(), prepare=new_head),
    Plan(optimizer=adam_with(), after_optimizer=new_head),
)
swap(
    "zero-grad-forgotten",
    "optimizer",
    "gradients are never cleared",
    r"zero_grad|clear|accumul|left over|old gradient",
    Plan(),
    Plan(zero="never"),
)
swap(
    "zero-grad-too-late",
    "optimizer",
    "zero_grad between backward and step",
    r"zero_grad|clear|between|order|all zero|no gradient|gradients? (is|are) zero",
    Plan(),
    Plan(zero="between"),
)
swap(
    "rate-of-0.5",
    "optimizer",
    "AdamW at a rate of 0.5",
    r"learning rate|\blr\b|\brate\b",
    Plan(optimizer=adam_with()),
    Plan(optimizer=adam_with(lr=0.5)),
)
swap(
    "rate-of-1e-8",
    "optimizer",
    "AdamW at a rate of 1e-8",
    r"learning rate|\blr\b|\brate\b|update.*(small|tiny)",
    Plan(optimizer=adam_with(), scheduler=constant),
    Plan(optimizer=adam_with(lr=1e-8), scheduler=constant),
)
swap(
    "scheduler-never-stepped",
    "optimizer",
    "a warmup from zero whose scheduler is never stepped",
    r"schedul|warmup|rate (is|of|stays|was) 0|rate.*zero|\blr",
    Plan(scheduler=from_zero),
    Plan(scheduler=from_zero, scheduler_steps=0),
)
swap(
    "scheduler-stepped-per-row",
    "optimizer",
    "the scheduler is stepped eight times a step, and the rate is at its floor after a tenth of the run",
    r"schedul|rate|\blr",
    Plan(scheduler=lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n)),
    Plan(scheduler=lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n), scheduler_steps=8),
)
swap(
    "decay-of-10",
    "optimizer",
    "weight_decay=10",
    r"decay",
    Plan(optimizer=adam_with(weight_decay=0.1)),
    Plan(optimizer=adam_with(weight_decay=10.0, lr=5e-3)),
)
swap(
    "betas-swapped",
    "optimizer",
    "betas=(0.999, 0.9)",
    r"beta|β",
    Plan(optimizer=adam_with(betas=(0.9, 0.999))),
    Plan(optimizer=adam_with(betas=(0.999, 0.9))),
)
swap(
    "eps-of-1",
    "optimizer",
    "eps=1.0 in AdamW",
    r"\beps|ε|epsilon",
    Plan(optimizer=adam_with()),
    Plan(optimizer=adam_with(eps=1.0)),
)


@fault(
    "optimizer-made-anew",
    "optimizer",
    r"state|moment|new optimizer|re-?created|made (anew|again)|reset|step count|restart|optimizer",
)
def _(run: Run, wrong: bool) -> None:
    """The optimizer is made inside the epoch's loop: its moments are lost every ten steps."""
    model, tokens = Transformer(), corpus(9)
    optimizer = adam_with()(model)
    doctor = run.watch(model, optimizer)
    for step in range(80):
        if wrong and step and step % 10 == 0:
            optimizer = adam_with()(model)
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


# precision


def half(dtype: torch.dtype) -> Callable[[nn.Module], Any]:
    return lambda model: model.to(dtype)


swap(
    "updates-lost-in-bfloat16",
    "precision",
    "weights in bfloat16 at a small rate: most updates round to nothing",
    (r"bf16|bfloat16|precision|half", r"round|lost|too small|vanish|no change|unchanged|swallow"),
    Plan(optimizer=adam_with(lr=1e-5), scheduler=constant),
    Plan(optimizer=adam_with(lr=1e-5), scheduler=constant, prepare=half(torch.bfloat16)),
)
swap(
    "adam-in-float16",
    "precision",
    "weights and moments in float16: eps rounds to zero",
    r"float16|fp16|half",
    Plan(optimizer=adam_with()),
    Plan(optimizer=adam_with(), prepare=half(torch.float16)),
)


def scaled(run: Run, wrong: bool, what: str) -> None:
    model, tokens = Transformer(), corpus(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=not (what == "none" and wrong))
    doctor = run.watch(model, optimizer, scaler=scaler)
    small = 1e-4 if what == "none" else 1.0  # a weighted loss whose gradients float16 cannot hold
    for group in optimizer.param_groups:
        group["lr"] /= small
    for _ in range(80):
        x, y = crops(tokens)
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = next_token(logits.float(), y) * small
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if what == "clip":
            if not wrong:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)


add_fault(
    "clipped-before-unscaling",
    "precision",
    "gradients clipped while they still carry the scaler's factor",
    r"unscale|scaler|before.*scal|scaled gradient",
    lambda run, bad: scaled(run, bad, "clip"),
)
add_fault(
    "float16-without-scaler",
    "precision",
    "float16 autocast without a scaler, gradients below its smallest number",
    (r"float16|fp16|half", r"underflow|scal|too small|zero|smallest|subnormal"),
    lambda run, bad: scaled(run, bad, "none"),
)


# accumulation, clipping

swap(
    "accumulation-not-divided",
    "accumulation",
    "eight micro-batches' losses added, not averaged, SGD",
    r"accumul|micro|divid|sum of|8",
    Plan(micro=8, steps=60, clip=0.0, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1)),
    Plan(micro=8, steps=60, clip=0.0, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), divide=False),
)
swap(
    "clipped-after-the-step",
    "accumulation",
    "clip_grad_norm_ after optimizer.step()",
    (r"clip", r"after|order|no effect|late"),
    Plan(clip=0.3, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.5)),
    Plan(clip=0.3, clip_late=True, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.5)),
)
swap(
    "clipped-to-1e-3",
    "accumulation",
    "gradients clipped at 0.001 in every step, SGD",
    r"clip",
    Plan(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.3)),
    Plan(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.3), clip=1e-3),
)


@fault("mean-of-means", "accumulation", r"unequal|token|micro|weight|mean of")
def _(run: Run, wrong: bool) -> None:
    """Micro-batches of very unequal numbers of targets, each averaged by itself."""
    model, tokens = Transformer(), corpus(11)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        micro: list[Batch] = []
        for keep in (32, 2, 2, 2):
            x, y = crops(tokens, 4)
            micro.append((x, y.masked_fill(torch.arange(32) < 32 - keep, -100)))
        count = sum(int((y != -100).sum()) for _, y in micro)
        optimizer.zero_grad()
        total = 0.0
        for x, y in micro:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="mean" if wrong else "sum")
            loss = loss / (4 if wrong else count)
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        doctor.step(total, micro)
        run.note(total)


# modes

swap(
    "eval-mode-left-on",
    "mode",
    "model.train() is forgotten after a validation",
    r"eval|train\(\)|training mode|dropout",
    Plan(shape={"dropout": 0.2}, mode_after=10_000),
    Plan(shape={"dropout": 0.2}, mode_after=19),
)


@fault(
    "trunk-without-gradient",
    "mode",
    r"no_grad|no gradient|without (a )?gradient|never (trained|updated|changed)|detach|not trained|grad",
)
def _(run: Run, wrong: bool) -> None:
    """torch.no_grad() around a trunk that the optimizer is meant to train."""
    model, documents = Classifier(classes=4), sentences(12)
    optimizer = adamw(model, 2e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        batch = some(documents, 16)
        ids, mask = padded(batch)
        with torch.set_grad_enabled(not wrong):
            hidden = model.trunk.hidden(ids, mask.bool())
        logits = model.classes((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        loss = F.cross_entropy(logits, topics(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": topics(batch)})
        run.note(loss)
