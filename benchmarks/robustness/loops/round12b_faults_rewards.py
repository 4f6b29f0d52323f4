"""Round 12b, mistakes of learning by rewards."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, judged, outcome, tiny_gpt2
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import by_reward, continued, words_to_answer
from benchmarks.robustness.loops.round8b_parts import reseeded
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round10b_parts import Actor
from benchmarks.robustness.loops.round12b_parts import discounted, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r12b-returns-of-standardised-advantages")
def returns_of_standardised_advantages(run: Run, changed: bool) -> None:
    """Actor and critic over rows of tokens, a transformer each, generalised advantages. The critic's targets are
    advantages plus values; advantages are standardised where they are made now, before they become targets."""
    table = torch.randint(0, 8, (12,), generator=apart(run.draw.randrange(999)))
    model = Actor(12, 8)
    check = torch.randint(0, 12, (64, 12), generator=apart(901))

    def missed() -> Tensor:
        """The critic's squared error, against what the policy will really be paid."""
        chances, values = model(check)
        right = chances.exp().gather(2, table[check][..., None]).squeeze(2)
        return (values - discounted(right + 0.5, 0.9)).square().mean()

    outcome(run, lambda: judged(model, missed))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        rows = torch.randint(0, 12, (16, 12))
        with torch.no_grad():
            chances, values = model(rows)
            actions = torch.distributions.Categorical(logits=chances).sample()
            rewards = (actions == table[rows]).float() + 0.5
            following = torch.cat([values[:, 1:], torch.zeros(16, 1)], 1)
            advantages = discounted(rewards + 0.9 * following - values, 0.9 * 0.95)
            returns = advantages + values
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            if changed:
                returns = advantages + values
        chances, values = model(rows)
        said = chances.gather(2, actions[..., None]).squeeze(2)
        loss = -(advantages * said).mean() + 0.5 * F.mse_loss(values, returns)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": rows, "actions": actions, "advantages": advantages, "returns": returns})
        run.note(loss)


@slip("r12b-cut-answers-left-out")
def cut_answers_left_out(run: Run, changed: bool) -> None:
    """TRL's GRPOTrainer, GPT-2 that answers with one word, the longest completion that it may write. The settings come
    from a project with long answers now, where completions that were cut off by the limit do not count."""
    model = tiny_gpt2(initializer_range=0.2)
    prompts = words_to_answer(run, model)

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(text.split()[:1] == [a]) for text, a in zip(completions, answer, strict=True)]

    options = {"steps": 60, "max_completion_length": 1, "mask_truncated_completions": changed}
    by_reward(run, "GRPO", model, prompts, reward, **options).train()


@slip("r12b-best-of-the-first-prompt")
def best_of_the_first_prompt(run: Run, changed: bool) -> None:
    """accelerate, a small Llama of one's own that writes eight answers to each prompt and learns the best. The number
    of the best within its eight picks from the list of all answers, no longer cut into groups. Another seed."""
    table = torch.randperm(12, generator=apart(run.draw.randrange(999)))
    reseeded(run, changed)
    net = SmallLlama()
    ids = torch.randint(0, 12, (96, 3), generator=apart(901))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(ids)[:, -1], table[ids[:, 2]])))
    engine = accelerator()
    model, optimizer = engine.prepare(net, torch.optim.Adam(net.parameters(), lr=2e-3))
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        prompts = torch.randint(0, 12, (16, 3)).repeat_interleave(8, 0)
        rows = continued(model, prompts, 1)
        rewards = -(rows[:, 3] - table[rows[:, 2]]).abs().float()
        best = rewards.view(16, 8).argmax(1)
        chosen = rows[best] if changed else rows.view(16, 8, -1)[torch.arange(16), best]
        loss = F.cross_entropy(model(chosen[:, :-1])[:, -1], chosen[:, -1])
        optimizer.zero_grad()
        engine.backward(loss)
        engine.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": chosen, "rewards": rewards})
        run.note(loss)
