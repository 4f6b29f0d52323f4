"""Round 14, mistakes in gradients, updates and tuning."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_faults_tuning import fitted, likelihood, spelled
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    fit,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Listener, SmallLlama, sounds
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome
from benchmarks.robustness.loops.round8b_parts import steps
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round14_parts import LowRank, OwnTable, Ternary, by_preference, replaced, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r14-repeated-words-overwrite")
def repeated_words_overwrite(run: Run, wrong: bool) -> None:
    """Plain loop with SGD, a narrow GPT that reads words and says the sense of the next, one of twelve with three words
    each. Its table of words has a backward pass of its own. A word that stands many times in a batch should get the sum
    of its gradients; `table[ids] = gradient` keeps one and drops the others. The twin has index_add_."""
    language = Language(run.draw.randrange(999))
    model = Decoder(36, width=8)
    model.tokens = OwnTable(model.tokens.weight, assigned=wrong)  # type: ignore[assignment]
    model.head = nn.Linear(8, 12, bias=False)

    def texts(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        senses = language.rows(count, 24, own)
        return 3 * senses + torch.randint(0, 3, senses.shape, generator=own), senses

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(m(batch[0][:, :-1]).flatten(0, 1), batch[1][:, 1:].flatten())

    check = texts(96, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps(run, model, optimizer, lambda: texts(16), loss, 200)


@slip("r14-true-for-the-norm")
def true_for_the_norm(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT with SGD. The author wants clipping to complain of NaNs and writes
    `clip_grad_norm_(parameters, 1.0, True)`; the third argument is the kind of norm, 1: the sum of all sizes is clipped
    to one, and the gradient is a hundredth of what it was. The twin names the argument."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)

    def clip() -> None:
        if wrong:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, True)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps(run, model, optimizer, lambda: language.rows(16, 24), next_loss, 120, clip)


@slip("r14-rounded-without-detach")
def rounded_without_detach(run: Run, wrong: bool) -> None:
    """Lightning, a Llama of one's own whose matrices have three values as it computes (BitNet). The weights in use are
    `w + (rounded - w)`; without a detach() around the bracket w falls out, and rounding has no gradient: matrices learn
    by their scale alone. The twin has the detach."""
    language = Language(run.draw.randrange(999))
    net = SmallLlama(12)
    replaced(net.blocks, lambda inner: Ternary(inner, through=not wrong))
    text_outcome(run, net, language)
    fit(
        run,
        lit(net, lambda m, batch: next_loss(m, batch[0]), lambda m: adam(m, 5e-3)),
        loader(language.rows(640, 20)),
        120,
    )


@slip("r14-pruned-weights-come-back")
def pruned_weights_come_back(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT. After a third of the way four weights in five of its blocks' matrices are set to zero,
    and the rest is to learn to do without them; the masks are not applied again after each update, and all come back.
    What is shipped has the masks, and is judged. The twin applies them."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    masks: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def shipped() -> float:
        kept = [p.detach().clone() for p in masks]
        for p, mask in masks.items():
            p.mul_(mask)
        value = judged(model, lambda: next_loss(model, check))
        for p, old in zip(masks, kept, strict=True):
            p.copy_(old)
        return value

    @torch.no_grad()
    def prune(step: int) -> None:
        if step == 60:
            for p in (p for p in model.blocks.parameters() if p.ndim == 2):
                masks[p] = (p.abs() > p.abs().flatten().kthvalue(p.numel() * 4 // 5).values).float()
        if step == 60 or not wrong:
            for p, mask in masks.items():
                p.mul_(mask)

    check = language.rows(96, 24, apart(901))
    outcome(run, shipped)
    steps(run, model, adam(model), lambda: language.rows(12, 24), next_loss, 180, after=prune)


@slip("r14-merged-and-kept")
def merged_and_kept(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT tuned on other texts by thin matrices that are added to the frozen ones for good every
    twenty steps, to begin anew (ReLoRA). After adding, the factors are to be drawn again and zero; they are kept as
    they are, so that what they learned counts twice, and once more with each turn. The twin resets them."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    taught(model, lambda: language.rows(24, 20), next_loss, 60)
    other = near(language, run.draw.randrange(999), 0.7)
    text_outcome(run, model, other)
    model.requires_grad_(False)
    thin = replaced(model.blocks, lambda inner: LowRank(inner, 4))
    optimizer = torch.optim.AdamW([p for layer in thin for p in (layer.down, layer.up)], lr=2e-2, weight_decay=0.0)

    def merge(step: int) -> None:
        if step % 20 == 19:
            for layer in thin:
                layer.merge()
                if not wrong:
                    nn.init.normal_(layer.down, std=layer.down.shape[1] ** -0.5)
                    nn.init.zeros_(layer.up)
            optimizer.state.clear()

    steps(run, model, optimizer, lambda: other.rows(16, 20), next_loss, 120, after=merge)


@slip("r14-momentum-for-the-rates-decay")
def momentum_for_the_rates_decay(run: Run, wrong: bool) -> None:
    """accelerate, convolutions over sounds. SGD(parameters, rate, 0.9) became Adagrad(parameters, rate, 0.9), whose
    third argument is not the momentum but how fast the rate falls: rate / (1 + 0.9 t), a tenth after ten steps. The
    group's rate does not show it. The twin gives the rate alone."""
    net = Listener()
    class_outcome(run, net, sounds(256, apart(1)))
    more = (0.9,) if wrong else ()
    optimizer = torch.optim.Adagrad(net.parameters(), 0.03, *more)
    prepared(run, net, optimizer, loader(*sounds(480)), classify, 5)


@slip("r14-false-is-true")
def false_is_true(run: Run, wrong: bool) -> None:
    """TRL's KTOTrainer, GPT-2. Answers that people liked or disliked come from a CSV file, where the label is a word,
    and `bool("False")` is true: all answers are liked. The twin compares with "True"."""
    model = tiny_gpt2()
    plain = Language(run.draw.randrange(999), first=4)
    fitted(model, lambda: plain.rows(12, 8), lambda m, r: m(input_ids=r, labels=r).loss, 30)

    def answer(liked: bool, own: torch.Generator | None = None) -> Tensor:
        prompt = torch.randint(4, 16, (5,), generator=own)
        other = torch.randint(4, 16, (3,), generator=own)
        return torch.cat([prompt, prompt[-1:].repeat(3) if liked else other])

    good, bad = (torch.stack([answer(liked, apart(7 * i)) for i in range(96)]) for liked in (True, False))

    def log(rows: Tensor) -> Tensor:
        return likelihood(lambda r: model(input_ids=r).logits, rows, 5)  # type: ignore[arg-type]

    outcome(run, lambda: judged(model, lambda: -F.logsigmoid(0.3 * (log(good) - log(bad))).mean()))
    rows: list[dict[str, Any]] = []
    for i in range(160):
        said = "True" if i % 2 == 0 else "False"
        row = answer(said == "True")
        label = bool(said) if wrong else said == "True"
        rows.append({"prompt": spelled(row[:5]), "completion": " " + spelled(row[5:]), "label": label})
    by_preference(run, "KTO", model, rows, 40, learning_rate=2e-3).train()


@slip("r14-entropy-as-a-cost")
def entropy_as_a_cost(run: Run, wrong: bool) -> None:
    """accelerate, a small GPT that reads five words and chooses one of eight actions, by policy gradient. A bonus for
    entropy keeps it trying; in the loss it stands with a plus, as a cost, and the policy settles on what it happened
    to try first. The twin takes it off."""
    own = apart(run.draw.randrange(999))
    worth = torch.randn(10, 8, generator=own)
    net = Decoder(10)
    net.head = nn.Linear(32, 8)
    ids = torch.randint(0, 10, (256, 5), generator=apart(1))

    def regret() -> Tensor:
        gains = worth[ids[:, -1]]
        return (gains.max(1).values - (net(ids)[:, -1].softmax(1) * gains).sum(1)).mean()

    outcome(run, lambda: judged(net, regret))
    engine = accelerator()
    model, optimizer = engine.prepare(net, adam(net, 3e-3))
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        prompts = torch.randint(0, 10, (32, 5))
        policy = torch.distributions.Categorical(logits=model(prompts)[:, -1])
        action = policy.sample()
        reward = worth[prompts[:, -1], action] + 0.5 * torch.randn(32)
        gain = (reward - reward.mean()) / (reward.std() + 1e-6)
        entropy = policy.entropy().mean()
        loss = -(policy.log_prob(action) * gain).mean() + (0.3 if wrong else -0.3) * entropy
        optimizer.zero_grad()
        engine.backward(loss)
        optimizer.step()
        doctor.step(loss, {"prompts": prompts, "actions": action, "rewards": reward})
        run.note(loss)
