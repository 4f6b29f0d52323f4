"""`limpid trace` of models that limpid has no mathematics of, and of one's own code: every call of PyTorch redone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.config.options import require
from limpid.terminal import say

if TYPE_CHECKING:
    from limpid.operations.document import RecordingDocument
    from limpid.verbs.trace import TraceFlags

APART = ("step", "quantity", "output")
"""Options of a trace that have no meaning here."""


def is_for_operations(flags: TraceFlags) -> bool:
    """Whether calls are to be redone, and not the step as limpid's own mathematics."""
    from limpid.source import KeptRecording, ModelFolder, find_source, open_source

    if ":" in flags.what:
        from limpid.operations.function import is_function

        if is_function(flags.what):
            return True
    source = find_source(flags.what)
    if isinstance(source, KeptRecording):
        return True
    asked = flags.operations or flags.precision is not None or flags.keep is not None
    asked = asked or bool(flags.what_if) or bool(flags.error_of)
    if flags.text is None:
        require(not asked, "--operations, --precision, --what-if, --error-of and --keep are for a step on a text: add "
                           "--text, or give MODULE:FUNCTION")  # fmt: skip
        return False
    if source is None:
        source = open_source(flags.what)
    if not isinstance(source, ModelFolder):
        require(not asked, f"{flags.what} is no Hugging Face folder, whose calls --operations, --precision, "
                           "--what-if, --error-of and --keep are for: leave them out")  # fmt: skip
        return False
    return asked or not _is_of_ours(source.path)


def _is_of_ours(folder: Path) -> bool:
    """Whether limpid has the mathematics of a folder's whole model."""
    from limpid.model.convert import said_of
    from limpid.model.families import FAMILIES

    said = said_of(folder)
    family = FAMILIES.get(str(said.get("model_type")))
    if family is None:
        return "model_type" not in said  # whose error names what is missing
    named = said.get("architectures") or [family.architecture]
    return named[0] in (family.architecture, family.scoring)


def trace_operations(flags: TraceFlags) -> int:
    """Take the step, and show what came of it; returns 1 where something is beyond rounding or not finite."""
    for name in APART:
        require(getattr(flags, name) is None, f"--{name} has no use for {flags.what}, each call of which is redone by "
                                              "itself: leave it out")  # fmt: skip
    if flags.what_if:
        return _what_if(flags)
    if flags.html is not None:
        from limpid.view.bundle import script

        script("recording")  # before the step is taken, which may take long
    found = _document(flags)
    if flags.html is not None:
        from limpid.view.recording import write

        write(found, Path(flags.html))
        say(f"{flags.html} opens in any browser, without a server or a network")
    elif flags.json:
        from limpid.terminal import say_json
        from limpid.tracing.schema import to_json

        say_json(to_json(found))
    else:
        from limpid.console import Console
        from limpid.operations.terminal import lines

        console = Console()
        for line in lines(found, brief=flags.brief, everything=flags.everything):
            console.print(line)
    return 0 if found.verdict == "holds" else 1


def _what_if(flags: TraceFlags) -> int:
    """Show what other formats would do to the loss; returns 1 where what was tried is not what was foretold."""
    from limpid.operations.function import is_function
    from limpid.source import KeptRecording, find_source

    require(not is_function(flags.what),
            f"--what-if needs the loss of {flags.what} by itself, which is known of Hugging Face folders and their "
            "recordings alone: in Python that is step.what_if(loss, {'layers.3.*': 'fp8'}) of "
            "limpid.recording(model)")  # fmt: skip
    if isinstance(find_source(flags.what), KeptRecording):
        _require_kept(flags)
    wanted = {}
    for one in flags.what_if:
        pattern, _, form = one.rpartition("=")
        require(bool(pattern and form), f"--what-if {one} expected PATTERN=FORMAT, such as 'layers.3.*=fp8'")
        wanted[pattern] = form
    from limpid.api.operations import try_formats
    from limpid.training.allocator import keep_freed_memory

    keep_freed_memory()
    found = try_formats(flags.what, flags.text, wanted, flags.precision or "fp32")
    if flags.json:
        from limpid.operations.what_if_document import document
        from limpid.terminal import say_json
        from limpid.tracing.schema import to_json

        say_json(to_json(document(found)))
    else:
        from limpid.console import Console
        from limpid.operations.what_if_terminal import lines

        console = Console()
        for line in lines(found, everything=flags.everything):
            console.print(line)
    return 0 if found.holds else 1


def _document(flags: TraceFlags) -> RecordingDocument:
    from limpid.source import KeptRecording, find_source

    source = find_source(flags.what)
    if isinstance(source, KeptRecording):
        from limpid.operations.kept import read

        _require_kept(flags)
        return read(source.path).document
    from limpid.api.operations import trace_function, trace_model
    from limpid.operations.function import OwnCodeError, is_function
    from limpid.training.allocator import keep_freed_memory

    keep_freed_memory()
    keep = None if flags.keep is None else Path(flags.keep)
    if is_function(flags.what):
        require(flags.text is None, f"{flags.what} feeds its model itself: leave out --text")
        require(flags.precision is None, f"{flags.what} chooses its own formats: leave out --precision")
        try:
            return trace_function(flags.what, keep, flags.error_of).document()
        except OwnCodeError as error:
            say(error.said, file=sys.stderr)
            raise
    assert flags.text is not None
    return trace_model(flags.what, flags.text, flags.precision or "fp32", keep, flags.error_of).document()


def _require_kept(flags: TraceFlags) -> None:
    """Raise ConfigError for what a recording has already."""
    given = {"--text": flags.text is not None, "--keep": flags.keep is not None,
             "--precision": flags.precision is not None, "--error-of": bool(flags.error_of)}  # fmt: skip
    for option, is_given in given.items():
        require(not is_given, f"{flags.what} is a recording already: leave out {option}")
