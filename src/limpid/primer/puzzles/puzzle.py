"""A longer exercise: something to look into, and a choice among several; each wrong one is told why it is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from limpid.primer.answer import LONGEST, Unreadable
from limpid.primer.grade import Grade
from limpid.primer.notebook import asked_html
from limpid.primer.progress import Sitting, now


class Choice(NamedTuple):
    """One of the answers that are offered."""

    label: str
    note: str
    """A tag, the same for every draw."""
    says: str
    """To whoever chooses it and is wrong."""


@dataclass(frozen=True)
class Puzzle:
    """A question with its choices, drawn from a seed."""

    name: str
    seed: int
    asked: str
    choices: tuple[Choice, ...]
    right: int
    """The place of the right one among the choices."""
    solution: str
    hints: tuple[str, ...]
    opens: str = ""
    """The entry of a recorded step where the same is done; nothing where there is none."""
    looks: Mapping[str, str] = field(default_factory=dict)
    """Entries of its own trace, each written out, by their names; none where there is nothing more to look into."""

    @property
    def said(self) -> str:
        """How to have the same again."""
        return f"{self.name} --seed {self.seed}"

    @property
    def question(self) -> str:
        listed = [_indented(number, one.label) for number, one in enumerate(self.choices, 1)]
        return "\n".join([self.asked, *listed])

    @property
    def answer(self) -> str:
        return str(self.right + 1)

    def judged(self, text: str, tried: int = 0) -> Grade:
        """What a choice is worth, by its number or its words; raises Unreadable."""
        place = self._place(text)
        if place == self.right:
            return Grade("right", "right", f"Right: {self.right + 1}.")
        chosen = self.choices[place]
        return Grade("slip", chosen.note, f"{chosen.says} {self.hints[min(tried, len(self.hints) - 1)]}".strip())

    def sitting(self, tries: tuple[str, ...], hints: int = 0, gave_up: bool = False) -> Sitting:
        return Sitting(self.name, self.said, now().isoformat(), tries, hints, gave_up)

    def _repr_html_(self) -> str:
        return asked_html(self)

    def _place(self, text: str) -> int:
        said = " ".join(text[:LONGEST].casefold().split()).strip(".()")
        if said.isascii() and said.isdigit() and 1 <= int(said) <= len(self.choices):
            return int(said) - 1
        named = [place for place, one in enumerate(self.choices) if said and one.label.casefold().startswith(said)]
        if len(named) != 1:
            raise Unreadable(f"“{text.strip()[:60]}” is none of the choices: type a number, 1 to {len(self.choices)}")
        return named[0]


def _indented(number: int, label: str) -> str:
    first, *rest = label.split("\n")
    return "\n".join([f"{number:3}  {first}", *(f"     {line}" for line in rest)])
