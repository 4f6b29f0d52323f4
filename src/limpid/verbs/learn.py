"""`limpid learn`: the primer, its chapters and its exercises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpid.config.flags import read
from limpid.config.names import probably_meant
from limpid.errors import ConfigError
from limpid.terminal import command, counted, say, say_json

if TYPE_CHECKING:
    from limpid.primer.posed import Asking, Posed


@dataclass(frozen=True)
class LearnFlags:
    """The primer: chapters from vectors on, and exercises that say what went wrong.

    limpid learn                     all chapters, exercises, what you answered
    limpid learn vectors             a chapter, its numbers computed as it is shown
    limpid learn dot                 an exercise, with numbers of its own each time
    limpid learn dot --seed 7        the same numbers anywhere; 0 are the first ones
    limpid learn dot --seed 7 --answer 22
    limpid learn scores --of last    with numbers of a step of yours
    limpid learn broken-step         the fault of a step; which-code, which-layout
    limpid learn broken-step --seed 7 --look "scores[1, 0]"    its trace
    limpid learn derive              a gradient, checked by finite differences
    limpid learn --due               what is to be asked again, with fresh numbers
    limpid learn length --numbers "v = [3, 4]"          solved with your numbers
    limpid learn --sheet sheet.html similarity softmax  to print; the key apart
    limpid learn --html primer.html  all chapters in one file, also for print
    """

    names: tuple[str, ...] = field(default=(), metadata={"positional": "NAME"})
    """Of a chapter or an exercise; of several with due and sheet, which take all unless some are named."""
    seed: int | None = None
    """Which numbers; another draw each time unless given."""
    of: str | None = None
    """Take the numbers from a step of this run, or of `worked`, the worked model; another place for another seed."""
    step: int | None = None
    """Which step of it; the last one unless given."""
    numbers: str | None = None
    """Solve it with your own numbers, such as 'v = [3, 4]' or 'a = [1, √2]; b = [0, 1/3]'."""
    answer: str | None = field(default=None, metadata={"verbatim": True})
    """Judge this answer, and ask nothing: exit code 0 when it is right, else 1."""
    look: str | None = None
    """Of broken-step: write out an entry of its trace, scores[1, 0], or all of a quantity, scores; ask nothing."""
    solution: bool = False
    """Print the question and how it is solved."""
    ask: bool = False
    """Ask, with your own numbers too."""
    due: bool = False
    """Ask what is due for review: what was answered is kept in ~/.local/share/limpid/learn.json, or $LIMPID_LEARN."""
    sheet: str | None = None
    """Write exercises into this HTML file, to be printed; answers and slips into FILE-key.html beside it."""
    html: str | None = None
    """Write all chapters to this file, which opens in a browser without a server."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("learn", LearnFlags, argv)
    from limpid.primer.chapter import CHAPTERS
    from limpid.primer.exercises import EXERCISES
    from limpid.primer.puzzles import PUZZLES

    known = [*CHAPTERS, *EXERCISES, *PUZZLES]
    for name in flags.names:
        if name not in known:
            close = probably_meant(name, known)
            way_out = f"did you mean {close}?" if close else f"choose one of {', '.join(known)}"
            raise ConfigError(f"no chapter or exercise is called {name!r}: {way_out}")
    if flags.seed is not None and flags.seed < 0:
        raise ConfigError(f"seed is {flags.seed}: 0 or more")
    if flags.html is not None:
        return _file(flags, flags.html)
    if flags.sheet is not None:
        _goes_with(flags, "a sheet has numbers of its seed", "seed", "json")
        return _sheet(flags, flags.sheet)
    if flags.due:
        _goes_with(flags, "what is due has fresh numbers", "due", "json")
        return _due(flags)
    if not flags.names:
        _goes_with(flags, "no exercise is named", "json")
        return _list(flags.json)
    if len(flags.names) > 1:
        raise ConfigError(
            f"{', '.join(flags.names)} are several: name one, or --due to be asked what is due, or --sheet FILE"
        )
    if flags.names[0] in CHAPTERS:
        _goes_with(flags, f"{flags.names[0]} is a chapter: choose one of its exercises", "json")
        return _chapter(flags.names[0], flags.json)
    if flags.step is not None and flags.of is None:
        raise ConfigError(f"step is {flags.step}, of no run: name it with of")
    if flags.numbers is not None:
        if flags.seed is not None or flags.of is not None:
            raise ConfigError("numbers is given beside seed or of, which choose numbers too: leave one out")
        return _one(_with_numbers(flags.names[0], flags.numbers), flags, not (flags.ask or flags.answer is not None))
    return _one(_asked(flags.names[0], flags), flags)


def _asked(name: str, flags: LearnFlags) -> Asking:
    """With numbers of a seed, or of a step of a run."""
    from limpid.primer.asked import WORKED, exercise

    if flags.of in (None, WORKED):
        return exercise(name, seed=flags.seed, of=flags.of)
    from limpid.api import trace

    return exercise(name, seed=flags.seed, of=trace(flags.of, flags.step))


def _goes_with(flags: LearnFlags, why: str, *allowed: str) -> None:
    """Refuse what was typed and would be passed over."""
    for option in ("seed", "of", "step", "numbers", "answer", "look", "solution", "ask", "due", "json"):
        value = getattr(flags, option)
        if option not in allowed and value is not None and value is not False:
            raise ConfigError(f"{option} is {value}, and {why}")


def _list(as_json: bool) -> int:
    from limpid.console import Console
    from limpid.primer.listed import document, lines

    if as_json:
        say_json(document())
    else:
        Console().print("\n".join(lines()), markup=False)
    return 0


def _file(flags: LearnFlags, file: str) -> int:
    """Write all chapters to one file."""
    from pathlib import Path

    from limpid.primer.chapter import CHAPTERS
    from limpid.view.learn_file import write

    if flags.names or flags.sheet:
        other = flags.sheet or ", ".join(flags.names)
        raise ConfigError(f"html is {file}, which all chapters are written to: leave out {other}")
    _goes_with(flags, "all chapters are written to a file")
    write(Path(file))
    say(f"{file}: {len(CHAPTERS)} chapters, to open in a browser")
    return 0


def _due(flags: LearnFlags) -> int:
    """Ask what is due, one after the other; 0 when each was answered right in the end."""
    from limpid.primer.asked import exercise
    from limpid.primer.exercises import EXERCISES
    from limpid.primer.listed import next_due
    from limpid.primer.posed import ask, keep
    from limpid.primer.puzzles import PUZZLES

    among = {name for name, one in EXERCISES.items() if not flags.names or {name, one.chapter} & set(flags.names)}
    among |= {name for name in PUZZLES if not flags.names or name in flags.names}
    waiting, said = next_due(among)
    if flags.json:
        say_json({"due": waiting})
        return 0
    say(said)
    right = True
    for name in waiting:
        posed = exercise(name)
        say(f"\n{posed.said}\n{posed.question}")
        asked = ask(posed)
        keep(asked.sitting)
        right = right and asked.sitting.right
        if asked.left:
            return 1
    return 0 if right else 1


def _sheet(flags: LearnFlags, file: str) -> int:
    from limpid.files import user_path, write_atomically
    from limpid.primer.asked import fresh
    from limpid.primer.exercises import EXERCISES
    from limpid.primer.sheet import sheet

    seed = fresh() if flags.seed is None else flags.seed
    chosen = [one for one in EXERCISES.values() if not flags.names or {one.name, one.chapter} & set(flags.names)]
    if not chosen:
        raise ConfigError(f"{', '.join(flags.names)} has no exercise: name another chapter, or none for all")
    path = user_path(file)
    key = path.with_name(f"{path.stem}-key{path.suffix}")
    write_atomically(path, sheet(chosen, seed).encode())
    write_atomically(key, sheet(chosen, seed, key=True).encode())
    if flags.json:
        say_json({"sheet": file, "key": str(key), "seed": seed, "exercises": [one.name for one in chosen]})
    else:
        say(f"{file}: {counted(len(chosen), 'exercise')} with numbers of seed {seed}; {key}: answers and slips")
    return 0


def _chapter(name: str, as_json: bool) -> int:
    from limpid.console import Console
    from limpid.primer.chapter import chapter
    from limpid.primer.html import html
    from limpid.primer.terminal import show

    read = chapter(name)
    if as_json:
        say_json({"chapter": read.name, "title": read.title, "minutes": read.minutes, "parts": html(read)})
    else:
        show(read, Console())
    return 0


def _with_numbers(name: str, text: str) -> Posed:
    """An exercise with numbers that were typed."""
    from limpid.primer.exercises import EXERCISES
    from limpid.primer.own_numbers import given
    from limpid.primer.posed import Posed

    if name not in EXERCISES:
        raise ConfigError(f"numbers is given, and {name} draws its own: leave it out")
    return Posed(EXERCISES[name], given(EXERCISES[name], text), command(name, "--numbers", text))


def _looked(posed: Asking, flags: LearnFlags) -> int:
    """Write out what was asked for of the exercise's own trace."""
    from limpid.primer.puzzles.broken_trace import looked

    look = str(flags.look)
    if flags.answer is not None or flags.solution or flags.ask:
        raise ConfigError(f"look is {look}, and looking asks and judges nothing: leave out answer, solution and ask")
    if not posed.looks:
        raise ConfigError(f"look is {look}, and {posed.said.split()[0]} has no trace of its own: broken-step has one")
    if flags.seed is None:
        raise ConfigError(f"look is {look}, of numbers drawn anew: say which by seed")
    said = looked(posed.looks, look)
    if flags.json:
        say_json({"exercise": posed.said, "look": look, "trace": said})
    else:
        say(said)
    return 0


def _one(posed: Asking, flags: LearnFlags, solved: bool = False) -> int:
    """Ask, or judge the answer that was given, or tell how it is solved."""
    from limpid.primer.posed import ask, keep

    if flags.look is not None:
        return _looked(posed, flags)
    solved = solved or flags.solution
    judged = None if flags.answer is None else posed.judged(flags.answer)
    if judged is not None:
        keep(posed.sitting((judged.note,)))
    if flags.json:
        found = {"exercise": posed.said, "question": posed.question}
        if solved:
            found |= {"solution": posed.solution, "answer": posed.answer}
        say_json(found | ({} if judged is None else judged._asdict()))
    else:
        say(f"{posed.said}\n{posed.question}")
        if judged is not None:
            say(judged.says)
        if solved:
            say(posed.solution)
        if judged is None and not solved:
            asked = ask(posed)
            keep(asked.sitting)
            return 0 if asked.sitting.right else 1
    return 0 if judged is None or judged.outcome == "right" else 1
