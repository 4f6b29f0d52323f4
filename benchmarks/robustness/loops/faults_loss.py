"""Mistakes in the loss."""

import copy

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.plan import Batch, Plan, swap
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops, padded, sentences, some
from benchmarks.robustness.loops.training import adamw, log_likelihood, next_token, pretrain, update
from benchmarks.robustness.loops.transformer import Transformer
from torch import Tensor
from torch.nn import functional as F


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
        update(run, doctor, optimizer, loss, {"input_ids": ids, "attention_mask": mask})


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
        update(run, doctor, optimizer, loss, (x, y))
