"""How a trained model is used: how text is continued, and in which formats its matrices are read and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from limpid.config.domain import Count, Positive, Whole, Within
from limpid.config.options import Checked, require

WeightFormat = Literal["auto", "fp32", "bf16", "int8"]
StoredAs = Literal["fp32", "fp16", "bf16", "q8_0"]
"""Formats of matrices in files for other programs; q8_0 is llama.cpp's: 32 integers of 8 bits and a scale."""
DEFAULT_TEMPERATURE = 0.8
SMALLEST_NORMAL = 2.0**-126
"""Of float32."""
WatermarkKey = Annotated[int, Within("[1, 4294967295]")]
WatermarkGamma = Annotated[float, Within("(0, 1)")]
GAMMA, DELTA = 0.25, 2.0
"""Of a watermark, as transformers has them."""


@dataclass(frozen=True, repr=False)
class Sampling(Checked):
    """How text is continued."""

    max_new_tokens: Count = field(default=200, metadata={"short": "n"})
    """Tokens to add at most."""
    temperature: Annotated[float, Within("[0, inf)", "0 is greedy")] | None = field(
        default=None, metadata={"short": "t"}
    )
    """Logits are divided by it; 0 takes the likeliest token each time; none is 0.8."""
    top_k: Whole = field(default=0, metadata={"short": "k"})
    """Only the k likeliest tokens may be drawn; 0 all of them."""
    top_p: Annotated[float, Within("(0, 1]", "1 allows every token")] = 1.0
    """Nucleus: only the fewest likeliest tokens whose probabilities reach p together."""
    min_p: Annotated[float, Within("[0, 1]", "0 allows every token")] = 0.0
    """Only tokens at least min_p times as likely as the likeliest."""
    repetition_penalty: Positive = 1.0
    """Logits of tokens that occurred are divided by it (multiplied, where negative)."""
    num_beams: Count = 1
    """Beam search over this many continuations instead of drawing."""
    length_penalty: Annotated[float, Within("[-16, 16]", "a length to a larger power leaves float64")] = 1.0
    """A beam's log-probability is divided by its length to this power."""
    watermark: WatermarkKey | None = None
    """Key of a watermark, a secret number: `limpid evaluate --watermark KEY` finds it again in the text."""
    watermark_gamma: WatermarkGamma = GAMMA
    """Share of the vocabulary that is green, drawn anew after each token from it and the key."""
    watermark_delta: Positive = DELTA
    """Added to the logits of green tokens: the larger, the sooner it is found, and the more the text suffers."""
    stop: tuple[str, ...] = field(default=(), metadata={"escapes": True})
    """Text that ends the continuation, and is cut off; \\n is a line break; may be given several times."""
    seed: Whole = 0
    """Draws are a function of it and of the prompt's place in the batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(self.stop), "stop is an empty text: every continuation would end before it begins")
        drawing = {"temperature": None, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        ignored = [
            f"{name} is {getattr(self, name):g}" for name, none in drawing.items() if getattr(self, name) != none
        ]
        require(
            self.num_beams == 1 or not ignored,
            f"num_beams is {self.num_beams}, and {' and '.join(ignored)}: beam search draws nothing; leave one or the "
            "other out",
        )
        require(
            self.num_beams > 1 or self.length_penalty == 1,
            f"length_penalty is {self.length_penalty}: it weighs beams against each other; give --num-beams too",
        )

        for name, none in (("watermark_gamma", GAMMA), ("watermark_delta", DELTA)):
            value = getattr(self, name)
            require(
                self.watermark is not None or value == none,
                f"{name} is {value:g}, and there is no watermark: give --watermark KEY too, or leave it out",
            )

    @property
    def heat(self) -> float:
        """The temperature that is drawn at."""
        return DEFAULT_TEMPERATURE if self.temperature is None else self.temperature

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken: at temperature 0, and at those that float32 cannot tell from it."""
        return self.heat < SMALLEST_NORMAL

    @property
    def plain(self) -> bool:
        """Whether every token may be drawn as the model has it."""
        return self.top_k == 0 and self.top_p == 1 and self.min_p == 0 and self.repetition_penalty == 1
