"""The gradient of a tied table: rows that were looked up are added to that of the whole, to the same bits."""

import pytest
import torch
from torch import Tensor

import limpid.model.embedding
from limpid.config import ModelConfig
from limpid.model import Transformer, initialise
from limpid.model.kernels.linear_cross_entropy import linear_cross_entropy

SIZES = ModelConfig(vocab_size=300, d_model=32, num_layers=1, num_heads=2, context_length=64)


def gradient(rows: int, batches: int = 1, of_stream: bool = False) -> Tensor:
    """Of the table, over micro-batches of `rows` rows; tokens come again."""
    model = initialise(Transformer(SIZES), 0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(batches):
        tokens = torch.randint(0, 40, (rows, SIZES.context_length), generator=generator)
        hidden = model(tokens, form_logits=False)
        if of_stream:
            hidden.stream.square().sum().backward()
        else:
            linear_cross_entropy(hidden.stream, hidden.output_matrix, tokens, tokens.numel()).backward()
    found = model.embed.tokens.weight.grad
    assert found is not None
    return found


@pytest.mark.parametrize("of_stream", [False, True])
@pytest.mark.parametrize(("rows", "batches"), [(1, 1), (2, 3), (6, 1)])
def test_the_gradient_is_that_of_pytorchs_embedding(
    rows: int, batches: int, of_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gradient(rows, batches, of_stream)
    monkeypatch.setattr(limpid.model.embedding, "is_unseen", lambda x: False)
    assert found.layout == torch.strided
    assert torch.equal(found, gradient(rows, batches, of_stream))


def test_no_second_table_is_held_or_added() -> None:
    model = initialise(Transformer(SIZES), 0)
    tokens = torch.randint(0, 40, (1, 64))
    hidden = model(tokens, form_logits=False)
    loss = linear_cross_entropy(hidden.stream, hidden.output_matrix, tokens, 64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        loss.backward()
    table = model.embed.tokens.weight.nbytes
    taken = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert max(taken) < table
