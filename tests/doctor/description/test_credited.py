"""Which choices are made likelier, in policies whose choices are known."""

from __future__ import annotations

import pytest
import torch

import limpid
from doctor.small_loops import net


@pytest.mark.parametrize("own", [True, False])
def test_the_choice_that_was_made_and_another(own: bool) -> None:
    """REINFORCE (Williams 1992), by the choice that was rewarded or by one that was drawn beside it."""
    torch.manual_seed(0)
    model = net(4, 8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x = torch.randn(64, 4)
            policy = torch.distributions.Categorical(logits=model(x))
            action, other = policy.sample(), policy.sample()
            reward = (action == x.argmax(1)).float() - 0.25 + 0.1 * torch.randn(64)
            loss = -(reward * policy.log_prob(action if own else other)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, {"x": x, "action": action, "reward": reward})
    assert dict(doctor.skipped) == {}
    told = " ".join(str(doctor.description).split())
    said = told.split("as that of the log probability of one choice does: it is ")[1]
    hit, chance = (float(said.split(start)[1].split("%")[0]) for start in ("action of the batch in ", "(by chance "))
    assert (hit == 100) == own
    assert 10 < chance < 40
    assert ("raised the more the higher reward is" in said) or not own


def test_nothing_is_said_of_labels() -> None:
    torch.manual_seed(0)
    model = net(4, 8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, y = torch.randn(32, 4), torch.randint(0, 5, (32,))
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert "one output against all others" not in " ".join(str(doctor.description).split())
