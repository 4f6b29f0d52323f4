"""A sheet of exercises to print, and its key apart: answers, then the slips, for whoever marks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby

from limpid.primer.chapter import chapter
from limpid.primer.exercise import Exercise, Numbers, numbers_of

STYLE = """
@page { size: A4; margin: 18mm 16mm }
.sheet { font: 11pt/1.45 "Noto Serif", Georgia, "DejaVu Serif", serif; color: #000; background: #fff;
  max-width: 44rem; margin: 1.5rem auto; padding: 0 1rem }
h1 { font-size: 15pt; margin: 0 0 .2rem } h2 { font-size: 12pt; margin: 1.3rem 0 .3rem }
p { margin: .15rem 0 } ol, ul { margin: 0; padding: 0; list-style: none }
li { break-inside: avoid; margin: .5rem 0; padding-left: 2.2rem; position: relative }
li > b { position: absolute; left: 0 }
h2 { break-after: avoid }
.answer { border-bottom: 1px solid #777; height: 2.4rem; margin-right: 35% }
.how { font: 8.5pt "DejaVu Sans Mono", monospace; color: #444 }
.about { font-size: 9.5pt; color: #333 }
.name { margin: .6rem 0 1rem } .name span { display: inline-block; border-bottom: 1px solid #777; width: 14rem }
section + section { break-before: page; margin-top: 2.5rem }
table { border-collapse: collapse; font-size: 9.5pt; width: 100% }
td { vertical-align: top; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #ddd }
td:nth-child(1) { white-space: nowrap; width: 9rem } td:nth-child(2) { width: 7rem; overflow-wrap: anywhere }
@media (max-width: 30rem) { td { display: block; border: 0 } td:nth-child(n) { width: auto } }
@media print { .sheet { margin: 0; padding: 0; max-width: none } section + section { margin: 0 } }
"""
NAMED = '<p class="name">Name: <span></span> &nbsp; Date: <span></span></p>'
SLIPS = '<p class="about">A wrong answer, and the way that leads to it with these numbers.</p>'


def sheet(exercises: Iterable[Exercise], *seeds: int, key: bool = False) -> str:
    """One page of HTML that needs nothing else: questions with the numbers of each seed; or answers, then slips."""
    named = ", ".join(map(str, seeds))
    body = sections(exercises, seeds, not key, key, key)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta name="viewport" content="width=device-width"/><title>limpid: exercises, seed {named}</title>'
        f'<style>{STYLE}</style></head>\n<body class="sheet">\n{body}</body></html>\n'
    )


def sections(
    exercises: Iterable[Exercise],
    seeds: Sequence[int],
    questions: bool = True,
    answers: bool = True,
    slips: bool = True,
) -> str:
    """The same without a page around it, for a room of class `sheet`; each part where it is asked for."""
    chosen = list(exercises)
    parts = [("Exercises", NAMED, _question)] if questions else []
    parts += [("Answers", "", _solved)] if answers else []
    parts += [("Slips", SLIPS, _slips)] if slips else []
    made = []
    for title, head, one in parts:
        for seed in seeds:
            each = [(exercise, numbers_of(exercise, seed)) for exercise in chosen]
            about = f"Numbers of seed {seed}: the same exercise is <code>limpid learn NAME --seed {seed}</code>."
            made.append(f'<section><h1>{title}</h1><p class="about">{about}</p>{head}{_all(each, one)}</section>\n')
    return "".join(made)


def _all(each: Sequence[tuple[Exercise, Numbers]], made: Callable[[Exercise, Numbers], str]) -> str:
    """Each exercise under its chapter, numbered through."""
    numbered = list(enumerate(each, 1))
    parts = []
    for name, its in groupby(numbered, lambda one: one[1][0].chapter):
        items = "".join(f"<li><b>{number}</b>{made(*one)}</li>" for number, one in its)
        parts.append(f"<h2>{escape(_title(name))}</h2><ol>{items}</ol>")
    return "".join(parts)


def _title(name: str) -> str:
    return chapter(name).title


def _question(exercise: Exercise, numbers: Numbers) -> str:
    asked = _lines(exercise.question(numbers))
    return f'<p>{asked}</p><p class="how">{exercise.name}</p><div class="answer"></div>'


def _solved(exercise: Exercise, numbers: Numbers) -> str:
    said = exercise.solution(*exercise.given(numbers))
    right = f"<strong>{escape(str(exercise.answer(numbers)))}</strong>"
    return f'<p>{right} <span class="how">{exercise.name}</span></p><p>{_lines(said)}</p>'


def _slips(exercise: Exercise, numbers: Numbers) -> str:
    given = exercise.given(numbers)
    rows = [
        f"<tr><td>{slip.note}</td><td>{escape(str(made))}</td><td>{escape(slip.told(given, made))}</td></tr>"
        for slip, made in exercise.wrong(numbers)
    ]
    return f'<p class="how">{exercise.name}</p><table>{"".join(rows)}</table>'


def _lines(text: str) -> str:
    return escape(text).replace("\n", "<br/>")
