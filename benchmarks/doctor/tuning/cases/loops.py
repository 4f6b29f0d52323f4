"""Loops that people write by hand around a model of transformers: answers, pairs, a policy."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.doctor.tuning.case import Bench, fault, honest
from benchmarks.doctor.tuning.models import sums
from torch import Tensor, nn

IGNORED = -100
Row = tuple[list[int], list[int]]  # tokens, labels


def chat(tokenizer: Any, question: str, answer: str, *, learn_all: bool = False, stop: bool = True) -> Row:
    """A conversation by the template, with its answer and the token that ends it as labels."""
    asked = [{"role": "user", "content": question}]
    before = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer.encode(before, add_special_tokens=False)
    said = tokenizer.encode(answer, add_special_tokens=False)
    ids = [*prompt, *said, tokenizer.eos_token_id, *tokenizer.encode("\n", add_special_tokens=False)]
    labels = [IGNORED] * len(prompt) + said + [tokenizer.eos_token_id if stop else IGNORED, IGNORED]
    return ids, list(ids) if learn_all else labels


def padded(rows: Sequence[Row], pad: int) -> dict[str, Tensor]:
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in rows])
    labels = torch.tensor([[*own, *[IGNORED] * (longest - len(own))] for _, own in rows])
    mask = torch.tensor([[1] * len(own) + [0] * (longest - len(own)) for _, own in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def learn(bench: Bench, row: Callable[[Any, int, int], Row], *, tokenizer_told: bool = True, steps: int = 12) -> None:
    """Supervised fine-tuning as everybody writes it."""
    tokenizer = bench.chat_tokenizer()
    model = bench.chat_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    doctor = bench.watch(model, optimizer, **({"tokenizer": tokenizer} if tokenizer_told else {}))
    for step in range(steps):
        batch = padded([row(tokenizer, a, b) for a, b in sums(8, step)], tokenizer.pad_token_id)
        loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        doctor.step(loss, batch)


@fault("prompt-in-the-labels", wanted=("prompt|users say", "mask|label"))
def _(bench: Bench, wrong: bool) -> None:
    """Labels are a copy of the inputs: what users say is learned, too."""
    learn(bench, lambda t, a, b: chat(t, f"{a}+{b}", str(a + b), learn_all=wrong))


@fault("no-label-at-all", wanted=("no label|masked", "mask|label"))
def _(bench: Bench, wrong: bool) -> None:
    """The template has no marks of generation, and the mask comes back empty in most rows."""

    def row(tokenizer: Any, a: int, b: int) -> Row:
        ids, labels = chat(tokenizer, f"{a}+{b}", str(a + b))
        return ids, [IGNORED] * len(ids) if wrong and a % 4 else labels

    learn(bench, row)


@fault("stop-masked", wanted=("stop|end",))
def _(bench: Bench, wrong: bool) -> None:
    """The label of the token that ends an answer is masked."""
    learn(bench, lambda t, a, b: chat(t, f"{a}+{b}", str(a + b), stop=not wrong), tokenizer_told=False)


@fault("stop-never-appended", wanted=("stop|end",))
def _(bench: Bench, wrong: bool) -> None:
    """Answers go without the token that would end them."""

    def row(tokenizer: Any, a: int, b: int) -> Row:
        ids, labels = chat(tokenizer, f"{a}+{b}", str(a + b))
        return (ids[:-2], labels[:-2]) if wrong else (ids, labels)

    learn(bench, row)


@fault("begins-twice", wanted=("twice",))
def _(bench: Bench, wrong: bool) -> None:
    """The template writes the token that begins a text, and the tokenizer adds it once more."""

    def row(tokenizer: Any, a: int, b: int) -> Row:
        ids, labels = chat(tokenizer, f"{a}+{b}", str(a + b))
        return ([tokenizer.bos_token_id, *ids], [IGNORED, *labels]) if wrong else (ids, labels)

    learn(bench, row)


@fault("marks-in-characters", wanted=("template|marks?", "characters|split|spell"))
def _(bench: Bench, wrong: bool) -> None:
    """The marks of turns are spelled in the text and tokenized character by character."""

    def row(tokenizer: Any, a: int, b: int) -> Row:
        ids, labels = chat(tokenizer, f"{a}+{b}", str(a + b))
        start = tokenizer.convert_tokens_to_ids("<|im_start|>")
        spelled = [tokenizer.convert_tokens_to_ids(letter) for letter in "<|im_start|>"]
        made = [(spelled, [IGNORED] * len(spelled)) if id == start and wrong else ([id], [label])
                for id, label in zip(ids, labels, strict=True)]  # fmt: skip
        return [id for some, _ in made for id in some], [label for _, some in made for label in some]

    learn(bench, row)


@fault("template-of-another-model", wanted=("template",))
def _(bench: Bench, wrong: bool) -> None:
    """Turns are marked as another family of models marks them."""

    def row(tokenizer: Any, a: int, b: int) -> Row:
        if not wrong:
            return chat(tokenizer, f"{a}+{b}", str(a + b))
        prompt = tokenizer.encode(f"<|begin|>[OTHER] {a}+{b} [/OTHER]", add_special_tokens=False)
        said = [*tokenizer.encode(f" {a + b}", add_special_tokens=False), tokenizer.eos_token_id]
        return prompt + said, [IGNORED] * len(prompt) + said

    learn(bench, row)


@honest("plain-text-is-learned-whole")
def _(bench: Bench) -> None:
    """A chat model learns plain text: every token has a label, and rows are windows without an end."""
    numbers = random.Random(0)

    def row(tokenizer: Any, a: int, b: int) -> Row:
        text = " ".join(numbers.choice(["river", "stone", "bird", "tree", "and", "the"]) for _ in range(12))
        ids = tokenizer.encode(text, add_special_tokens=False)[:40]
        return ids, ids

    learn(bench, row)


@honest("answers-cut-at-the-context")
def _(bench: Bench) -> None:
    """A third of the answers is cut off at the context's end, and so without a stop."""

    def row(tokenizer: Any, a: int, b: int) -> Row:
        ids, labels = chat(tokenizer, f"{a}+{b}", " ".join([str(a + b)] * (1 + a % 9)))
        return ids[:60], labels[:60]

    learn(bench, row)


def answer_log_probabilities(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
    log_p = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    targets = labels[:, 1:]
    picked = log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return (picked * (targets != IGNORED)).sum(-1)


EPOCH = 12
"""Steps."""


def prefer(
    bench: Bench,
    *,
    swapped: bool = False,
    reference: str = "copy",
    logged: bool = True,
    rejected_first: bool = False,
    steps: int = 30,
    rate: float = 3e-4,
) -> None:
    """DPO by hand: `reference` is a copy, the policy itself, a copy that is trained too, or one with dropout on."""
    tokenizer = bench.chat_tokenizer()
    policy = bench.chat_model(tokenizer, dropout=0.1 if reference == "drops out" else 0.0)
    other = policy if reference == "itself" else copy.deepcopy(policy)
    if reference != "drops out":
        other.eval()
    held = [*policy.parameters(), *(other.parameters() if reference == "trained" else ())]
    optimizer = torch.optim.AdamW(held, lr=rate)
    doctor = bench.watch(policy, optimizer, tokenizer=tokenizer, steps_per_epoch=EPOCH)
    data, order = list(dict.fromkeys(sums(200)))[: 6 * EPOCH], random.Random(0)
    for step in range(steps):
        if step % EPOCH == 0:
            order.shuffle(data)
        asked = data[step % EPOCH * 6 :][:6]
        batch: dict[str, Tensor] = {}
        for side, off in (("chosen", 0), ("rejected", 1)):
            made = padded([chat(tokenizer, f"{a}+{b}", str(a + b + off)) for a, b in asked], tokenizer.pad_token_id)
            batch |= {f"{side}_{name}": tensor for name, tensor in made.items()}
        sides = ("rejected", "chosen") if rejected_first else ("chosen", "rejected")
        now = {
            side: answer_log_probabilities(policy, batch[f"{side}_input_ids"], batch[f"{side}_labels"])
            for side in sides
        }
        with torch.set_grad_enabled(reference == "trained"):
            before = {s: answer_log_probabilities(other, batch[f"{s}_input_ids"], batch[f"{s}_labels"]) for s in sides}
        ratios = {side: 0.1 * (now[side] - before[side]) for side in sides}
        margin = ratios["chosen"] - ratios["rejected"]
        loss = -F.logsigmoid(-margin if swapped else margin).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        batch |= {f"ref_{side}_logps": before[side].detach() for side in sides}
        metrics = {f"rewards/{side}": float(ratios[side].detach().mean()) for side in sides}
        metrics["rewards/margins"] = float(margin.detach().mean())
        metrics["rewards/accuracies"] = float((margin.detach() > 0).float().mean())
        doctor.step(loss, batch, metrics if logged else None)


@fault("sides-exchanged", wanted=("chosen", "rejected", "exchanged|sign|swap|changed places"))
def _(bench: Bench, wrong: bool) -> None:
    """DPO by hand raises what was rejected; nothing is logged but the loss."""
    prefer(bench, swapped=wrong, logged=False)


@fault("sides-exchanged-and-logged", wanted=("chosen|rejected", "exchanged|sign|swap|changed places"))
def _(bench: Bench, wrong: bool) -> None:
    """The same with TRL's metrics, and each batch forgotten."""
    prefer(bench, swapped=wrong, steps=60)


@fault("reference-is-the-policy", wanted=("reference", "same|goes along|copy"))
def _(bench: Bench, wrong: bool) -> None:
    """The reference is the policy itself, not a copy; nothing is logged but the loss."""
    prefer(bench, reference="itself" if wrong else "copy", logged=False)


@fault("reference-is-the-policy-and-logged", wanted=("reference", "same|goes along|copy"))
def _(bench: Bench, wrong: bool) -> None:
    """The same with TRL's metrics."""
    prefer(bench, reference="itself" if wrong else "copy")


@fault("reference-trains", wanted=("reference", "second model|train|chang|updated|another log-prob"))
def _(bench: Bench, wrong: bool) -> None:
    """The optimizer holds the reference, too, and the loss differentiates through it."""
    prefer(bench, reference="trained" if wrong else "copy", logged=False)


@fault("reference-drops-out", wanted=("reference", "dropout|drops out|training mode"))
def _(bench: Bench, wrong: bool) -> None:
    """The reference is left in training mode, with dropout."""
    prefer(bench, reference="drops out" if wrong else "copy", logged=False)


@honest("rejected-rows-come-first")
def _(bench: Bench) -> None:
    """DPO with a pass for each side, the rejected first: at the start all of its weights are negative and equal."""
    prefer(bench, rejected_first=True, logged=False)


def reinforce(
    bench: Bench,
    *,
    clip: float | None = None,
    length: int = 8,
    wrong_if_cut: bool = False,
    alike: float = 0.0,
    updates: int = 1,
    steps: int = 40,
    logged: bool = False,
) -> None:
    """GRPO by hand on random answers: the reward is how many digits there are."""
    tokenizer = bench.chat_tokenizer()
    model = bench.chat_model(tokenizer).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    doctor = bench.watch(model, optimizer, tokenizer=tokenizer)
    numbers, generator = random.Random(0), torch.Generator().manual_seed(0)
    for step in range(steps):
        batch, rewards = drawn(tokenizer, sums(4, step), length, generator, wrong_if_cut)
        for group in rewards.view(4, -1):
            if numbers.random() < alike:
                group[:] = 1.0
        groups = rewards.view(4, -1)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)
        if clip is not None:
            advantages = advantages.clamp(-clip, clip)
        old = None
        for _ in range(updates):
            log_p = model(input_ids=batch["input_ids"]).logits[:, :-1].log_softmax(-1)
            log_p = log_p.gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
            mask = batch["completion_mask"][:, 1:]
            old = log_p.detach() if old is None else old
            ratio = (log_p - old).exp()
            loss = -((ratio * advantages[:, None]) * mask).sum() / mask.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            given = {**batch, "rewards": rewards, "advantages": advantages, "old_log_probs": old}
            metrics = {"ratio/mean": float((ratio.detach() * mask).sum() / mask.sum()), "reward": float(rewards.mean())}
            doctor.step(loss, given, metrics if logged else None)


def drawn(tokenizer: Any, asked: Sequence[tuple[int, int]], length: int, generator: torch.Generator, cut: bool) -> Any:
    """Eight answers to each prompt: letters and digits at random, some of which end in time."""
    ids, masks, rewards = [], [], []
    for a, b in asked:
        prompt = chat(tokenizer, f"{a}+{b}".rjust(5), "")[0][:-2]
        for _ in range(8):
            letters = torch.randint(0, 20, (length,), generator=generator).tolist()
            size = int(torch.randint(2, 2 * length, (1,), generator=generator))
            said = [
                tokenizer.convert_tokens_to_ids("0123456789abcdefghij"[one]) for one in letters[: min(size, length)]
            ]
            ended = size < length
            worth = sum(one < 10 for one in letters[:size]) / max(1, min(size, length))
            rewards.append(0.0 if cut and not ended else worth + (2.0 if cut else 0.0))
            row = [*prompt, *said, *([tokenizer.eos_token_id] if ended else [])]
            total = len(prompt) + length + 1
            masks.append([0] * len(prompt) + [1] * (len(row) - len(prompt)) + [0] * (total - len(row)))
            ids.append(row + [tokenizer.pad_token_id] * (total - len(row)))
    batch = {"input_ids": torch.tensor(ids), "completion_mask": torch.tensor(masks)}
    return batch, torch.tensor(rewards)


@fault("advantages-cut-short", wanted=("advantage", "clip|cut"))
def _(bench: Bench, wrong: bool) -> None:
    """Advantages are clipped to a hundredth of a deviation."""
    reinforce(bench, clip=0.01 if wrong else 5.0)


@fault("broken-off-is-wrong", wanted=("broken off|truncat|length",))
def _(bench: Bench, wrong: bool) -> None:
    """An answer that reaches its greatest length earns nothing, whatever it says."""
    reinforce(bench, wrong_if_cut=wrong)


@fault("groups-of-one-reward", wanted=("group|prompt", "alike|variance|equal"))
def _(bench: Bench, wrong: bool) -> None:
    """In four of five groups all answers are rewarded alike; of the twin in one of five."""
    reinforce(bench, alike=0.8 if wrong else 0.2, steps=100)


@honest("several-updates-on-a-draw")
def _(bench: Bench) -> None:
    """Three updates on each draw: ratios leave 1, and rows come back."""
    reinforce(bench, updates=3, logged=True)
