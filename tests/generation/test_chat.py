"""A conversation goes on after a line that the model cannot take."""

import pytest

from limpid.config import ModelConfig, Sampling
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.generation.chat import chat
from limpid.model import Transformer, initialise


def talk(*lines: str) -> str:
    model = initialise(
        Transformer(ModelConfig(vocab_size=257, context_length=32, d_model=16, num_layers=1, num_heads=2)), 0
    )
    said, waiting = [], iter(lines)

    def read() -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    chat(model.eval(), byte_tokenizer(), Sampling(max_new_tokens=3), read, said.append)
    return "".join(said)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/help", "/help is no command: /reset starts anew"),
        ("x" * 100, "the model's context holds 32: shorten it"),
        ("caf\udce9", "half of a surrogate pair"),
    ],
)
def test_a_line_that_cannot_be_answered_costs_itself_alone(line: str, told: str) -> None:
    said = talk(line, "hello")
    assert told in said
    assert said.index(told) < len(said) - len(told) - 3
