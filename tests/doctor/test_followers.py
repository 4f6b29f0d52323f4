"""A loss that rises with the values of a copy that follows the model is asked about; with a copy at rest it accuses."""

import copy

import pytest
import torch
import torch.nn.functional as F

import limpid
from doctor.small_loops import net


@pytest.mark.parametrize("follows", [True, False])
def test_values_that_a_following_copy_gives_may_grow(follows: bool) -> None:
    torch.manual_seed(0)
    model = net(6, 32, 1)
    slow = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(160):
            x, then = torch.randn(64, 6), torch.randn(64, 6)
            with torch.no_grad():
                target = (x[:, 0] > 0).float() + 0.97 * slow(then)[:, 0] + (0.02 * step) ** 2 * torch.randn(64)
            loss = F.smooth_l1_loss(model(x)[:, 0], target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if follows and step % 5 == 4:
                slow.load_state_dict(model.state_dict())
            doctor.step(loss, (x, then))
    rises = {one.severity for one in doctor.findings if one.rule in ("loss-diverges", "loss-spike")}
    assert rises == ({"notice"} if follows else {"fault"}), [(one.rule, one.severity) for one in doctor.findings]
