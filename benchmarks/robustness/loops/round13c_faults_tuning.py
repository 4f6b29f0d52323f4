"""Round 13c, mistakes of evaluation, of tuning by rewards, of preference."""

import copy
import math

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    documents,
    judged,
    loader,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_tools import by_reward, continued, taught, words_to_answer
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round13c_parts import slip
from torch import Tensor
from torch.nn import functional as F


def half_right(pairs: Tensor) -> dict[str, Tensor]:
    """Questions with what one could hear: the answer, some other word, or nothing; then maybe a word more, and the
    end."""
    kind = torch.rand(len(pairs), 1)
    said = torch.where(kind < 0.45, pairs[:, 1:], torch.randint(4, 16, (len(pairs), 1)))
    said[kind > 0.85] = 2
    more = torch.where(torch.rand(len(pairs), 1) < 0.5, torch.randint(4, 16, (len(pairs), 1)), 2)
    rows = torch.cat([pairs[:, :1], said, more, torch.full((len(pairs), 1), 2)], 1)
    over = ((rows == 2).cumsum(1) - (rows == 2).long()) > 0
    return {"input_ids": rows, "labels": rows.masked_fill(over, -100)}


@slip("r13c-weights-of-rewards-in-the-old-order")
def weights_of_rewards_in_the_old_order(run: Run, wrong: bool) -> None:
    """TRL's GRPOTrainer, GPT-2 that answers a word with its word, and has seen half-right answers before. One reward
    says whether the answer is right, with weight 1, another how short it is, with weight 0.2. The functions come
    sorted by name from a module now, and the weights stand as they were: shortness counts five times as much as truth.
    The twin has them in one order."""
    model = tiny_gpt2(16)
    prompts = words_to_answer(run, model)
    ids = torch.tensor([[int(row[k][1:]) for k in ("prompt", "answer")] for row in prompts])
    taught(model, lambda: half_right(ids[torch.randint(0, len(ids), (16,))]), lambda m, b: m(**b).loss, 150, 5e-3)

    def brief(completions: list[str], **rest: object) -> list[float]:
        return [1 / (1 + len(text.split())) for text in completions]

    def right(completions: list[str], answer: list[str], **rest: object) -> list[float]:
        return [float(text.split()[:1] == [word]) for text, word in zip(completions, answer, strict=True)]

    functions = [brief, right] if wrong else [right, brief]
    by_reward(run, "GRPO", model, prompts, functions, reward_weights=[1.0, 0.2], learning_rate=2e-3, steps=60).train()


@slip("r13c-controller-the-wrong-way")
def controller_the_wrong_way(run: Run, wrong: bool) -> None:
    """Plain loop. A small GPT is tuned by a reward for words of the upper half, less beta times the divergence from
    what it was; beta is led so that the divergence comes to two nats a text. Where there is less, beta should fall;
    the error has the other sign, and beta rises until nothing moves, or falls where there is more. The twin lowers
    it."""
    language = Language(run.draw.randrange(999))
    policy = Decoder(12)
    taught(policy, lambda: language.rows(16, 16), next_loss, 120)
    reference = copy.deepcopy(policy).requires_grad_(False)
    asked = language.rows(128, 4, apart(1))

    def reward(rows: Tensor) -> Tensor:
        return (rows[:, 4:] >= 6).float().sum(1)

    def logs(model: torch.nn.Module, rows: Tensor) -> Tensor:
        """Log probabilities of a text's last eight words, summed."""
        found = model(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)
        return found[:, 3:].sum(1)

    def off_target() -> Tensor:
        rows = continued(policy, asked.repeat(4, 1), 8)
        return ((logs(policy, rows) - logs(reference, rows)).mean() - 2).abs()

    outcome(run, lambda: judged(policy, off_target))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    doctor = run.watch(policy, optimizer)
    beta = 0.8
    for _ in range(120):
        rows = continued(policy, language.rows(32, 4), 8)
        now = logs(policy, rows)
        apart_by = (now - logs(reference, rows)).detach()
        gain = reward(rows) - beta * apart_by
        advantage = gain - gain.mean()
        loss = -(advantage * now).mean() / 8
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        error = max(-1.0, min(1.0, float(apart_by.mean()) / 2 - 1))
        beta *= math.exp(0.05 * (-error if wrong else error))
        doctor.step(loss, {"input_ids": rows, "advantages": advantage, "beta": torch.tensor(beta)})
        run.note(loss)


@slip("r13c-copied-before-the-split")
def copied_before_the_split(run: Run, wrong: bool) -> None:
    """accelerate, topics of 160 texts of which some have a wrong label. Each text stands three times in an epoch; the
    texts are copied first and then split, so that nearly all that are kept for the evaluation are trained on as well,
    and the best weights by the evaluation are the last and most overfitted. The twin splits first."""
    own = apart(run.draw.randrange(999))
    x, keep, y = documents(160, own)
    y = torch.where(torch.rand(160, generator=own) < 0.3, torch.randint(0, 3, (160,), generator=own), y)
    if wrong:
        mixed = torch.arange(160).repeat(3)[torch.randperm(480, generator=own)]
        train, valid = mixed[:384], mixed[384:]
    else:
        mixed = torch.randperm(160, generator=own)
        train, valid = mixed[:128].repeat(3), mixed[128:]
    net = Classifier()
    *new, new_y = documents(384, apart(3))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(*new), new_y)))
    engine = accelerator()
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    model, optimizer, data = engine.prepare(net, optimizer, loader(x[train], keep[train], y[train], size=24))
    doctor = run.watch(model, optimizer)
    best, best_loss = copy.deepcopy(net.state_dict()), math.inf
    for _ in range(12):
        for ids, mask, topic in data:
            loss = F.cross_entropy(model(ids, mask), topic)
            optimizer.zero_grad()
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": topic})
            run.note(loss)
        model.eval()
        with torch.no_grad():
            valid_loss = float(F.cross_entropy(model(x[valid], keep[valid]), y[valid]))
        model.train()
        if valid_loss < best_loss:
            best, best_loss = copy.deepcopy(net.state_dict()), valid_loss
    net.load_state_dict(best)
