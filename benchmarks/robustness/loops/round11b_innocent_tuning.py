"""Round 11b, unusual ways to learn by rewards, by preferences, of moved rows, and to judge, rewritten without harm."""

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    apart,
    judged,
    outcome,
)
from torch import Tensor, nn


@innocent("r11b-four-passes-over-a-rollout")
def four_passes_over_a_rollout(run: Run, changed: bool) -> None:
    """Proximal policy optimisation: each rollout serves four updates. The smaller of two products became a choice by
    the sign of the advantage: the ratio is cut on one side only, which is the same."""
    table = torch.randint(0, 8, (12,), generator=apart(run.draw.randrange(999)))
    model = Decoder(12)
    model.head = nn.Linear(32, 8)
    check = torch.randint(0, 12, (64, 12), generator=apart(901))
    outcome(run, lambda: judged(model, lambda: 1 - model(check).softmax(-1).gather(2, table[check][..., None]).mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    doctor = run.watch(model, optimizer)

    def chance(rows: Tensor, actions: Tensor) -> Tensor:
        return model(rows).log_softmax(-1).gather(2, actions[..., None]).squeeze(2)

    for _ in range(30):
        rows = torch.randint(0, 12, (16, 12))
        with torch.no_grad():
            actions = torch.distributions.Categorical(logits=model(rows)).sample()
            at_play = chance(rows, actions)
        rewards = (actions == table[rows]).float() + 0.3 * torch.randn(rows.shape)
        advantages = (rewards - rewards.mean()) / rewards.std()
        for _ in range(4):
            ratio = (chance(rows, actions) - at_play).exp()
            if changed:
                cut = torch.where(advantages > 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8))
                loss = -(advantages * cut).mean()
            else:
                loss = -torch.minimum(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            doctor.step(loss, {"input_ids": rows, "actions": actions, "advantages": advantages})
            run.note(loss)
