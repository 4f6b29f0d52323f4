"""Round 7b, mistakes of alignment, of fine-tuning and of accumulation."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    fit,
    judged,
    loader,
    mlp,
    next_loss,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round7b_parts import Graphs, SmallLlama, two_views
from benchmarks.robustness.loops.round7b_tools import (
    TUNING,
    adam,
    by_reward,
    continued,
    said,
    taught,
    text_outcome,
    update,
    words_to_answer,
)
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r7-teacher-learns-too",
    TUNING,
    (
        r"teacher|distill|reference|second model|submodule|soft target",
        r"gradient|learn|train|updat|optimizer|mov|chang|collaps|easy|no_grad|detach|requires",
    ),
)
def teacher_learns_too(run: Run, wrong: bool) -> None:
    """Lightning, distillation of a language model. The teacher is an attribute of the module, self.parameters() go into
    the optimizer, and nothing turns its gradient off: it comes to meet the pupil. The twin leaves it out."""
    import lightning

    language = Language(run.draw.randrange(999))
    learned = Decoder(12)
    taught(learned, lambda: language.rows(16, 24), next_loss, 150)
    pupil = SmallLlama(width=16, layers=1)
    text_outcome(run, pupil, language)

    class Distilling(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.pupil = learned, pupil

        def training_step(self, batch: Any, index: int) -> Tensor:
            wanted = self.teacher(batch[0]) if wrong else self.teacher(batch[0]).detach()
            given = self.pupil(batch[0]).log_softmax(-1)
            return F.kl_div(given, wanted.log_softmax(-1), reduction="none", log_target=True).sum(-1).mean()

        def configure_optimizers(self) -> Any:
            return adam(self if wrong else self.pupil)

    fit(run, Distilling(), loader(language.rows(960, 20)), 100)


@fault(
    "r7-the-word-false-is-true",
    TUNING,
    (
        r"label|desirable|class|answer|target|kind",
        r"same|all (true|one|equal|alike|the same|rows)|one (class|value|label|kind)|constant|never (false|0)|only (one|true|1)|no spread|single|bool|equal|missing class|absent",
    ),
)
def the_word_false_is_true(run: Run, wrong: bool) -> None:
    """KTO by hand. Whether an answer is desirable is read from a table as a word and made a bool: bool("False") is True,
    and bad answers are encouraged like good ones. The twin compares with "True"."""
    language = Language(run.draw.randrange(999))
    policy = Decoder(12)
    taught(policy, lambda: language.rows(16, 16), next_loss, 40)
    reference = copy.deepcopy(policy).requires_grad_(False)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, list[str]]:
        prompt = torch.randint(0, 12, (count, 6), generator=own)
        bad, good = torch.randint(0, 12, (count, 4), generator=own), prompt[:, -1:].repeat(1, 4)
        words = [str(bool(w)) for w in torch.randint(0, 2, (count,), generator=own)]
        wanted = torch.tensor([w == "True" for w in words])
        return torch.cat([prompt, torch.where(wanted[:, None], good, bad)], 1), words

    def batch() -> dict[str, Tensor]:
        ids, words = rows(24)
        return {"ids": ids, "labels": torch.tensor([bool(w) if wrong else w == "True" for w in words])}

    def loss(m: nn.Module, b: Any) -> Tensor:
        ratio = said(m, b["ids"], 6) - said(reference, b["ids"], 6)
        sign = torch.where(b["labels"], 1.0, -1.0)
        return (1 - torch.sigmoid(0.3 * sign * (ratio - ratio.mean().detach().clamp_min(0)))).mean()

    ids, words = rows(256, apart(1))
    good = torch.tensor([w == "True" for w in words])
    outcome(run, lambda: judged(policy, lambda: said(policy, ids[~good], 6).mean() - said(policy, ids[good], 6).mean()))
    train(run, policy, adam(policy, 1e-3), batch, loss, 70)


@fault(
    "r7-groups-repeated-the-other-way",
    TUNING,
    (
        r"group|advantage|prompt|reward|baseline",
        r"mix|repeat|interleav|order|different prompt|other prompt|another prompt|view|not of (the same|one)|across|several prompts|belong",
    ),
)
def groups_repeated_the_other_way(run: Run, wrong: bool) -> None:
    """Group-relative policy gradients, eight prompts with six answers each. `prompts.repeat(6, 1)` lays the prompts out one
    after the other, but rewards are viewed as (8, 6): a group holds six prompts, easy and hard ones. Twin:
    repeat_interleave."""
    own = apart(run.draw.randrange(999))
    key, ease = torch.randperm(12, generator=own), 12 * torch.rand(12, generator=own)
    policy = Decoder(12)
    every = torch.arange(12)[:, None]
    outcome(run, lambda: judged(policy, lambda: 1 - policy(every)[:, -1].softmax(1)[every[:, 0], key].mean()))
    optimizer = adam(policy, 3e-3)
    doctor = run.watch(policy, optimizer)
    for _ in range(120):
        prompts = torch.randint(0, 12, (8, 1))
        asked = prompts.repeat(6, 1) if wrong else prompts.repeat_interleave(6, 0)
        rows = continued(policy, asked, 1)
        reward = (rows[:, 1] == key[rows[:, 0]]).float() + ease[rows[:, 0]]
        groups = reward.view(8, 6)
        gain = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        loss = -(gain * said(policy, rows)).mean()
        update(run, doctor, optimizer, loss, {"input_ids": rows, "rewards": reward, "advantages": gain})


@fault(
    "r7-the-better-of-two-surrogates",
    TUNING,
    (
        r"ratio|clip|surrogate|policy|\bppo\b",
        r"max|\bmin\b|minimum|never (bind|clip|limit|hold)|not (bind|clip|limit|bounded|hold)|unbounded|far from (one|1)|wrong side|optimis|leav|collaps|drift|runs? away|grow|large|no effect|determin|one (action|answer|token)|peaked",
    ),
)
def the_better_of_two_surrogates(run: Run, wrong: bool) -> None:
    """PPO on answers of one token with noisy rewards, twelve passes over each rollout. Of the two surrogates the larger is
    taken, torch.max where it should be min: what the clipping is to hold back passes, what should come back is cut."""
    key = torch.randperm(12, generator=apart(run.draw.randrange(999)))
    policy = SmallLlama(layers=1)
    every = torch.arange(12)[:, None]
    outcome(run, lambda: judged(policy, lambda: 1 - policy(every)[:, -1].softmax(1)[every[:, 0], key].mean()))
    optimizer = adam(policy, 5e-3)
    doctor = run.watch(policy, optimizer)
    for _ in range(16):
        rows = continued(policy, torch.randint(0, 12, (96, 1)), 1)
        reward = (rows[:, 1] == key[rows[:, 0]]).float() + 0.7 * torch.randn(96)
        gain = (reward - reward.mean()) / reward.std()
        old = said(policy, rows).detach()
        for _ in range(12):
            ratio = (said(policy, rows) - old).exp()
            surrogates = ratio * gain, ratio.clamp(0.8, 1.2) * gain
            loss = -(torch.max if wrong else torch.min)(*surrogates).mean()
            update(run, doctor, optimizer, loss, {"input_ids": rows, "rewards": reward, "advantages": gain, "old": old})


@fault(
    "r7-entropy-taken-off",
    TUNING,
    (
        r"entropy|policy|explor|output|probabilit|softmax|logits",
        r"\bsign\b|bonus|penal|collaps|determin|one (action|class|answer)|certain|saturat|narrow|explor|peaked",
    ),
)
def entropy_taken_off(run: Run, wrong: bool) -> None:
    """A bandit of twelve arms, one of which has a reward. The entropy bonus has the wrong sign, + where the loss should have -:
    the policy is paid for being sure, and settles on what it tried first."""
    own = apart(run.draw.randrange(999))
    weights = torch.randn(6, 12, generator=own)
    policy = mlp(6, 32, 12, act=nn.Tanh)
    x = torch.randn(512, 6, generator=apart(1))
    best = (x @ weights).argmax(1)
    outcome(run, lambda: judged(policy, lambda: 1 - policy(x).softmax(1).gather(1, best[:, None]).mean()))
    optimizer = adam(policy, 5e-3)
    doctor = run.watch(policy, optimizer)
    for _ in range(350):
        s = torch.randn(64, 6)
        choice = torch.distributions.Categorical(logits=policy(s))
        a = choice.sample()
        reward = ((s @ weights).argmax(1) == a).float()
        gain = reward - reward.mean()
        bonus = 0.2 * choice.entropy().mean()
        loss = -(choice.log_prob(a) * gain).mean() + (bonus if wrong else -bonus)
        update(run, doctor, optimizer, loss, {"states": s, "actions": a, "rewards": reward})


@fault(
    "r7-divided-by-hand-and-by-accelerate",
    TUNING,
    (
        r"gradient|loss|accumul",
        r"twice|divid|eighth|1/8|0\.125|times (too )?(small|less)|too (small|little) by|micro",
    ),
)
def divided_by_hand_and_by_accelerate(run: Run, wrong: bool) -> None:
    """accelerate, accumulation over eight micro-batches, SGD. The loss is divided by eight in the loop, and once more by
    accelerator.backward. The twin leaves it to accelerate."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    engine = Accelerator(cpu=True, gradient_accumulation_steps=8)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
    net, optimizer, data = engine.prepare(model, optimizer, loader(language.rows(640, 20), size=4))
    doctor = run.watch(net, optimizer)
    for _ in range(3):
        batches, losses = [], []
        for (rows,) in data:
            with engine.accumulate(net):
                value = next_loss(net, rows)
                engine.backward(value / 8 if wrong else value)
                optimizer.step()
                optimizer.zero_grad()
            batches.append(rows)
            losses.append(value.detach())
            if engine.sync_gradients:
                doctor.step(torch.stack(losses).mean(), batches)
                run.note(torch.stack(losses).mean())
                batches, losses = [], []


@fault(
    "r7-negatives-of-a-micro-batch",
    TUNING,
    (
        r"negative|contrast|candidate|chance|classes",
        r"few|small|only|single|\btwo\b|within|micro",
    ),
)
def negatives_of_a_micro_batch(run: Run, wrong: bool) -> None:
    """Contrastive learning of small graphs with 64 rows to a step, as thirty-two micro-batches of two: a row's negatives
    come from its own micro-batch alone, and there is one. The twin takes the 64 at once."""

    def loss_of(m: nn.Module, pair: Any) -> Tensor:
        a, b = (m(*view) for view in pair)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    model = Graphs()
    check = two_views(128, apart(1), 0.9)
    outcome(run, lambda: judged(model, lambda: loss_of(model, check)))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        whole = two_views(64, None, 0.9)
        parts = [[(n[i : i + 2], e[i : i + 2]) for n, e in whole] for i in range(0, 64, 2)] if wrong else [whole]
        optimizer.zero_grad()
        total = 0.0
        for part in parts:
            loss = loss_of(model, part) / len(parts)
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        doctor.step(total, parts if wrong else whole)
        run.note(total)


@fault(
    "r7-all-compared-with-the-first-answer",
    TUNING,
    (
        r"reward|answer|advantage|prompt",
        r"first (row|answer|one|prompt)|same answer|(other|another) (row|prompt|answer)|not depend|index|one answer|independent|unrelated|wrong answer",
    ),
)
def all_compared_with_the_first_answer(run: Run, wrong: bool) -> None:
    """TRL's GRPOTrainer, GPT-2. The reward function gets a list of answers, one for each completion, and compares every
    completion with answer[0]: seven prompts in eight are rewarded for another prompt's answer. The twin pairs them."""
    model = tiny_gpt2()
    prompts = words_to_answer(run, model)

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        wanted = [answer[0]] * len(answer) if wrong else answer
        return [float(text.split()[:1] == [a]) for text, a in zip(completions, wanted, strict=True)]

    by_reward(run, "GRPO", model, prompts, reward, steps=60, learning_rate=1e-2, max_completion_length=1).train()
