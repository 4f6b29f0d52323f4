"""The build hook: wheels, editable installs and sdists carry the page, which is not in git."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "web"))
import bundle


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds web/ where its result is missing or older than its sources; an sdist has it already."""

    def dependencies(self) -> list[str]:
        """PyPI's Node, where the page is to be built and no Node is on the PATH."""
        return [] if bundle.is_built() or bundle.on_path() else [bundle.NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page before files are gathered."""
        if bundle.is_built():
            return
        try:
            bundle.build()
        except RuntimeError as error:
            self.app.abort(str(error))
