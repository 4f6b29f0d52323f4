"""What was said of a loop, read from a file or given as a table, and judged as the loop goes on."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.doctor.expected import of_data, of_labels, of_model, of_update
from limpid.doctor.expected.course import Course
from limpid.doctor.expected.key import KEYS, Key, Seen, When
from limpid.doctor.expected.of_model import is_named
from limpid.doctor.fact import shown
from limpid.errors import ConfigError
from limpid.files import read_whole, user_path

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

NEEDS = {"schedule": "rate", "warmup": "schedule", "final_rate": "schedule"}
"""What says nothing without another thing that is said."""
ROOMS = (of_data, of_model, of_labels, of_update)
"""Where the keys are."""
PARTS = ("data", "model", "labels", "loss", "gradient", "update")
"""Of a step, in their order."""
SHOWN = 4
"""Of many things that are not as said, how many are told."""


@dataclass(frozen=True)
class Mismatch:
    """One thing that is not as it was said."""

    key: Key
    said: Any
    seen: Any

    @property
    def says(self) -> str:
        """Both, in words."""
        seen = self.seen
        if isinstance(seen, list) and seen and isinstance(seen[0], int):
            seen = f"{min(seen):,} to {max(seen):,}" if min(seen) < max(seen) else seen[0]
        elif isinstance(seen, list | tuple):
            more = f" and {len(seen) - SHOWN:,} more" if len(seen) > SHOWN else ""
            seen = ", ".join(map(shown, seen[:SHOWN])) + more
        return f"{self.key.name} ({self.key.means}): {_told(seen)}, where {_told(self.said)} was said"


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(one)}" for name, one in value.items())
    return shown(value)


@dataclass
class Expected:
    """What was said, and what of it was seen to be otherwise."""

    said: dict[str, Any]
    course: Course = field(default_factory=Course)
    against: dict[str, int] = field(default_factory=dict)  # judgements in a row that disagreed
    told: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, given: Mapping[str, Any] | str | Path) -> Expected:
        """From a table, or a TOML file of one; tables by part, as [labels], may stand in it.

        Raises  ConfigError for a file that cannot be read, a name that is no key, a value that it does not take
        """
        table = dict(given) if isinstance(given, Mapping) else _from_file(user_path(given))
        flat: dict[str, Any] = {}
        for name, value, part in _entries(table):
            _check(name, value, part)
            if flat.setdefault(name, value) != value:
                raise ConfigError(f"expected {name} is said twice, {flat[name]!r} and {value!r}: leave one of them out")
        for name, needed in NEEDS.items():
            if name in flat and needed not in flat:
                raise ConfigError(f"expected {name} is judged with {needed}, of which nothing is said: say it, too")
        return cls(flat)

    def require_known(self, parameters: Collection[str]) -> None:
        """Raise ConfigError for a word that stands in no parameter's name."""
        for key in ("trained", "rate"):
            words = self.said.get(key)
            for word in words if isinstance(words, list | dict) else ():
                if not any(is_named(name, word) for name in parameters):
                    some = ", ".join(list(parameters)[:SHOWN])
                    raise ConfigError(
                        f"expected {key} says {word!r}, which stands in no parameter's name, as in {some}"
                    )

    def settles(self, rule: str) -> bool:
        """Whether what a rule doubts was said, and has not been seen to be otherwise."""
        return any(rule in KEYS[name].settles(said) for name, said in self.said.items() if name not in self.told)

    def judged(self, watched: Watched, record: StepRecord, history: History, when: When) -> Iterator[Mismatch]:
        """What is not as said by now, each once."""
        if when == "step":
            self.course.take(watched, record, history)
        seen = Seen(watched, record, history, self.course, self.said)
        for name, said in self.said.items():
            key = KEYS[name]
            if key.when != when or name in self.told:
                continue
            found = key.see(seen, said)
            if found is None:
                continue
            self.against[name] = 0 if key.agrees(said, found) else self.against.get(name, 0) + 1
            if self.against[name] >= key.patience:
                self.told.add(name)
                yield Mismatch(key, said, found)


def table() -> str:
    """All that can be said, in the order of a step."""
    lines = ["| | | takes | says |", "|---|---|---|---|"]
    for part in PARTS:
        lines += [f"| {part} | `{k.name}` | {k.takes} | {k.means} |" for k in KEYS.values() if k.part == part]
    return "\n".join(lines)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_whole(path).decode())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} holds nothing that is expected of a loop: {why}; write a TOML file") from error


def _entries(table: Mapping[str, Any]) -> Iterator[tuple[str, Any, str | None]]:
    """What is said by name, and under which part it stands, if under any."""
    for name, value in table.items():
        if name in PARTS and isinstance(value, Mapping):
            yield from ((inner, one, name) for inner, one in value.items())
        else:
            yield name, value, None


def _check(name: str, value: Any, part: str | None) -> None:
    if name not in KEYS:
        near = difflib.get_close_matches(name, KEYS, 1)
        hint = f"{near[0]} is meant, perhaps" if near else f"there are {', '.join(KEYS)}"
        raise ConfigError(f"nothing that can be expected of a loop is called {name!r}: {hint}")
    if part not in (None, KEYS[name].part):
        raise ConfigError(f"expected {name} stands under [{part}], and is of the {KEYS[name].part}: move it there")
    if not KEYS[name].accepts(value):
        raise ConfigError(f"expected {name} is {value!r}: it takes {KEYS[name].takes}")
