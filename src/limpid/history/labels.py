"""Tags and a note that a user gives a run, beside what the run writes about itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from limpid.errors import ConfigError
from limpid.files import MALFORMED, explained, write_atomically
from limpid.run import Run

FILE = "labels.json"


@dataclass(frozen=True)
class Labels:
    """What a user says of a run."""

    tags: tuple[str, ...] = ()
    note: str = ""

    @staticmethod
    def of(run: Run) -> Labels:
        """Those of a run; none where there are none, or the file was damaged."""
        try:
            found = json.loads((run.path / FILE).read_text(encoding="utf-8"))
            return Labels(tuple(map(str, found["tags"])), str(found["note"]))
        except (OSError, *MALFORMED):
            return Labels()

    def changed(self, tag: Sequence[str], untag: Sequence[str], note: str | None) -> Labels:
        """With these tags added, those taken away, and the note, if there is one, in place of the old one.

        Raises  ConfigError for an empty tag, and for one to take away that is not there
        """
        if not all(word.strip() for word in tag):
            raise ConfigError("tag is '': give a word")
        for word in untag:
            if word not in self.tags:
                raise ConfigError(f"no tag {word!r} to take away: there are {', '.join(self.tags) or 'none'}")
        tags = dict.fromkeys(word for word in (*self.tags, *tag) if word not in untag)
        return dataclasses.replace(self, tags=tuple(tags), note=self.note if note is None else note)

    def write(self, run: Run) -> None:
        """Keep them in the run's folder."""
        with explained(f"cannot write {run.path / FILE}"):
            content = json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=1) + "\n"
            write_atomically(run.path / FILE, content.encode())
