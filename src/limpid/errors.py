"""What a user can get wrong. Each error is one line: the offending value, what was expected, the way out."""

from limpid.terminal import on_one_line

LONGEST = 2000
"""Characters of a message; what a damaged file makes longer is left out in its middle."""


class LimpidError(Exception):
    """A user's mistake or a machine's refusal; the command line prints it without a traceback and exits with 2."""

    told = False
    """Whether another process of the same run has printed it."""

    def __str__(self) -> str:
        said = on_one_line(super().__str__())
        return said if len(said) <= LONGEST else f"{said[: LONGEST // 2]} … {said[3 - LONGEST // 2 :]}"


class ConfigError(LimpidError):
    """An option is unknown, out of range, or contradicts another."""


class ShapeError(LimpidError, ValueError):
    """Two arrays do not fit together; the message names both shapes."""


class DataError(LimpidError):
    """Text, tokens or a tokenizer cannot be used as asked."""


class CheckpointError(LimpidError):
    """A run folder, model folder or recorded step is missing, cut short or foreign."""


class DomainError(LimpidError, ValueError):
    """A number lies where the mathematics gives no answer; the message names it and what is allowed."""
