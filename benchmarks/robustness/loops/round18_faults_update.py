"""Round 18, mistakes in gradients, updates and schedules."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    loader,
    next_loss,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, regress
from benchmarks.robustness.loops.round7b_tools import adam, taught, text_outcome
from benchmarks.robustness.loops.round18_parts import (
    Heard,
    OfWords,
    OwnSoftmax,
    clipped,
    clipping,
    loop,
    series,
    slip,
    topics,
)
from benchmarks.robustness.loops.training import llama
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


@slip("r18-clipped-by-the-weights-norm")
def clipped_by_the_weights_norm(run: Run, wrong: bool) -> None:
    """Plain loop with SGD, a small GPT and a clipping of one's own. The norm that is compared with the limit is taken
    of the parameters, not of their gradients: at every step gradients are divided by it. The twin takes it of the
    gradients."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop(run, model, optimizer, lambda: language.rows(16, 24), next_loss, 120, lambda: clipped(model, 1.0, not wrong))


@slip("r18-softmax-backward-without-its-sum")
def softmax_backward_without_its_sum(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT whose attention has a softmax with a backward pass of its own. What comes back is
    multiplied by the probabilities, and the sum over the row is not taken off. The twin takes it off."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    for block in model.blocks:
        block.attention = OwnSoftmax(32, whole=not wrong)
    text_outcome(run, model, language)
    train(run, model, adam(model), lambda: language.rows(16, 24), next_loss, 150)


@slip("r18-hook-in-place-of-clipping")
def hook_in_place_of_clipping(run: Run, wrong: bool) -> None:
    """Lightning with SGD, a GRU over series of which some have a wild target. To keep the norm of the gradients the
    module overrides configure_gradient_clipping, which is also what clips, and gradient_clip_val has no effect. The
    twin calls clip_gradients there."""
    net = Heard(2)
    number_outcome(run, net, series(256, 0.0, apart(1)), log=True)
    module = clipping(net, regress, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), clips=not wrong)
    fit(run, module, loader(*series(640, 0.02)), 200, gradient_clip_val=0.5)


@slip("r18-floor-as-a-share")
def floor_as_a_share(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a Llama under a cosine that should end at a tenth of the rate. The tenth is given as
    min_lr, which is a rate itself, ten times the highest one: the rate rises to it. The twin says min_lr_rate."""
    language = Language(run.draw.randrange(999), first=4)
    model = llama(vocab_size=16)
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(640, 20)
    settings: dict[str, Any] = {"lr_scheduler_type": "cosine_with_min_lr", "warmup_steps": 10, "learning_rate": 1e-2}
    settings |= {"lr_scheduler_kwargs": {"min_lr": 0.1} if wrong else {"min_lr_rate": 0.1}}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 160, **settings).train()


@slip("r18-lambda-bound-late")
def lambda_bound_late(run: Run, wrong: bool) -> None:
    """Plain loop, a tuned encoder of texts with a new head. The factors of the head's and the body's rates are lambdas
    made in a comprehension, and each reads its variable as it is called, when it has the last value: the head has the
    body's factor. The twin binds it."""
    model = OfWords()
    taught(model, lambda: topics(24, [1.0, 1.0, 1.0], 0.5, 10), classify, 60)
    model.head = nn.Linear(32, 5)
    class_outcome(run, model, topics(256, [1.0] * 5, 0.5, 10, apart(1)))
    body = [p for name, p in model.named_parameters() if not name.startswith("head")]
    optimizer = torch.optim.Adam([{"params": model.head.parameters()}, {"params": body}], lr=1e-2)
    if wrong:
        factors: Any = [lambda step: share * min(1.0, (step + 1) / 10) for share in (1.0, 0.02)]  # noqa: B023
    else:
        factors = [lambda step, share=share: share * min(1.0, (step + 1) / 10) for share in (1.0, 0.02)]
    schedule = LambdaLR(optimizer, factors)

    def batch() -> Any:
        return topics(16, [1.0] * 5, 0.5, 10)

    loop(run, model, optimizer, batch, classify, 60, after=lambda step, loss: schedule.step())


@slip("r18-loss-for-the-step-number")
def loss_for_the_step_number(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT with a warm-up of twenty steps. ReduceLROnPlateau was there before, whose step() takes
    the loss; LambdaLR's takes the number of the step, and is given the loss: the rate stays where the warm-up is at
    two. The twin gives it nothing."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    optimizer = adam(model)
    schedule: Any = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))

    def after(step: int, loss: float) -> None:
        if wrong:
            schedule.step(loss)
        else:
            schedule.step()

    loop(run, model, optimizer, lambda: language.rows(16, 24), next_loss, 100, after=after)
