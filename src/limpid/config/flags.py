"""Command-line flags from dataclasses: every field is an option, every docstring below a field its help."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from limpid.config.names import aliases, probably_meant
from limpid.config.options import converted, from_dict, hints, required
from limpid.config.threads import Threads, use_threads
from limpid.errors import ConfigError

T = TypeVar("T")

SWITCH_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
DEVICES = "limpid takes the GPU that PyTorch finds, else the processor; CUDA_VISIBLE_DEVICES hides or chooses GPUs"


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are our errors."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


class Formatter(argparse.HelpFormatter):
    """Prose filled to the terminal's width; examples, which begin with a small letter, as they stand."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(part if part[:1].islower() else textwrap.fill(part, width) for part in parts)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """The spellings of an option; argparse leaves a blank where a switch has no value: `-f , --force`."""
        return super()._format_action_invocation(action).replace(" ,", ",").rstrip(" ")


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of one section."""

    section: str  # "" for the verb's own fields
    field: dataclasses.Field[Any]
    kind: Any
    help: str

    @property
    def key(self) -> str:
        """Where the value goes."""
        return f"{self.section}.{self.field.name}" if self.section else self.field.name

    @property
    def flags(self) -> list[str]:
        """Spellings: --d-model, --model.d-model, and a short one where the field asks for it."""
        name = self.field.name.replace("_", "-")
        short = [f"-{self.field.metadata['short']}"] if "short" in self.field.metadata else []
        return [*short, f"--{name}", *([f"--{self.section}.{name}"] if self.section else [])]


def read(verb: str, kind: type[T], argv: Sequence[str], everyday: Sequence[str] = ()) -> T:
    """A verb's options as they were typed, the rest at their defaults."""
    flags = from_dict(kind, given(verb, kind, argv, everyday))
    if isinstance(flags, Threads):
        use_threads(flags.threads)
    return flags


def given(verb: str, kind: type[Any], argv: Sequence[str], everyday: Sequence[str] = ()) -> dict[str, Any]:
    """The options that were typed, as nested plain values for `from_dict(kind, …)`; the rest keep their defaults.

    A field with metadata `positional` takes what has no flag. --x and --no-x, --x=false, --a_b for --a-b,
    --section.x for --x, and other tools' names (--lr) are all understood.
    Where `everyday` names options, --help shows these alone, in this order, and --help-all every one.

    Raises  ConfigError for an unknown option or a value of the wrong type; SystemExit after --help
    """
    options = list(options_of(kind))
    everything = "--help-all" in argv
    parser = make_parser(verb, kind, () if everything else everyday)
    if everything:
        parser.print_help()
        raise SystemExit(0)
    typed, rest = parser.parse_known_intermixed_args(_spelled_out(options, argv))
    if rest:
        raise _unexpected(verb, rest[0], options)
    plain: dict[str, Any] = {}
    for key, value in vars(typed).items():
        section, _, name = key.rpartition(".")
        if value != []:  # no positional was typed
            (plain.setdefault(section, {}) if section else plain)[name] = value
    return plain


def _unexpected(verb: str, word: str, options: list[Option]) -> ConfigError:
    flag = word.partition("=")[0]
    if not flag.startswith("-"):
        return ConfigError(f"{word!r} was not expected here; see limpid {verb} --help")
    name = flag.lstrip("-").replace("-", "_").rpartition(".")[2]
    if name in ("device", "gpu", "cuda") and not any(option.field.name == "device" for option in options):
        return ConfigError(f"unknown option {flag}: {DEVICES}")
    alone = {option.field.metadata["positional"]: option.field.name for option in options if _stands_alone(option)}
    for word, field in alone.items():
        if name.removesuffix("s") in {form.removesuffix("s") for form in (*word.lower().split(), field)}:
            return ConfigError(f"unknown option {flag}: {word} stands without a name; see limpid {verb} --help")
    close = probably_meant(name, [option.field.name for option in options if not _stands_alone(option)])
    hint = f"did you mean --{close.replace('_', '-')}?" if close else f"see limpid {verb} --help"
    return ConfigError(f"unknown option {flag}: {hint}")


def _spelled_out(options: list[Option], argv: Sequence[str]) -> list[str]:
    """argv with dashes inside names, and every switch followed by its value: --x to --x=true."""
    switches = {flag for option in options if option.kind is bool for flag in option.flags}
    verbatim = {flag for option in options if "verbatim" in option.field.metadata for flag in option.flags}
    ours = aliases([option.field.name for option in options])
    spelled: list[str] = []
    for index, word in enumerate(argv):
        if word == "--":
            return [*spelled, *argv[index:]]
        if spelled and spelled[-1] in verbatim and not word.startswith("--"):
            spelled[-1] += f"={word}"  # -1/3 is no option
            continue
        if spelled and spelled[-1] in switches:
            said = word.lower() in SWITCH_WORDS
            spelled[-1] += f"={word}" if said else "=true"
            if said:
                continue
        name, equals, value = word.partition("=") if word.startswith("-") else (word, "", "")
        name = name.replace("_", "-") if word.startswith("-") else name
        name = ours.get(name, name)
        on = name.replace("--no-", "--", 1)
        spelled.append(f"{on}=false" if on != name and on in switches and not equals else name + equals + value)
    if spelled and spelled[-1] in switches:
        spelled[-1] += "=true"
    return spelled


def options_of(kind: type[Any], section: str = "") -> Iterator[Option]:
    kinds, texts = hints(kind), field_texts(kind)
    for field in dataclasses.fields(kind):
        if not field.metadata.get("flag", True):
            continue
        if dataclasses.is_dataclass(kinds[field.name]):
            yield from options_of(kinds[field.name], field.name)
        else:
            yield Option(section, field, kinds[field.name], texts.get(field.name, ""))


def field_texts(kind: type[Any]) -> dict[str, str]:
    """The string that stands below each field of a dataclass, and of those that it extends."""
    return {name: text for one in kind.__mro__[-2::-1] for name, text in _own_texts(one).items()}


@functools.cache  # reads and parses a file, and an option's help is asked for several times
def _own_texts(kind: type[Any]) -> dict[str, str]:
    """The same of the fields that stand in a class itself; one that dataclasses.make_dataclass made has no text."""
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    body: ast.ClassDef = ast.parse(textwrap.dedent(source)).body[0]  # type: ignore[assignment]
    texts = {}
    for field, text in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts[field.target.id] = " ".join(str(text.value.value).split())  # type: ignore[union-attr]
    return texts


def make_parser(verb: str, kind: type[Any], everyday: Sequence[str] = ()) -> Parser:
    """argparse's parser of a verb's options; where some are named as everyday ones, only these are shown."""
    options = list(options_of(kind))
    if everyday:
        places = {name: place for place, name in enumerate(everyday)}
        options.sort(key=lambda option: places.get(option.field.name, len(places)))
    hidden = [option for option in options if everyday and not _is_shown(option, everyday)]
    parser = Parser(
        prog=f"limpid {verb}",
        usage=" ".join(["limpid", verb, *filter(None, map(_shown, options)), "[options]"]),
        description=inspect.getdoc(kind),
        formatter_class=Formatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        epilog=f"{len(hidden)} more options: limpid {verb} --help-all" if hidden else None,
    )
    groups: dict[str, Any] = {"": parser}
    for option in options:
        section = "" if everyday or "positional" in option.field.metadata else option.section
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        _add(groups[section], option, hidden=option in hidden)
    return parser


def _is_shown(option: Option, everyday: Sequence[str]) -> bool:
    return option.field.name in everyday or _stands_alone(option)


def _stands_alone(option: Option) -> bool:
    """Whether it is typed without a name."""
    return "positional" in option.field.metadata


def _shown(option: Option) -> str:
    """A positional option as the usage line shows it."""
    word = option.field.metadata.get("positional")
    if word is None:
        return ""
    if _element(option.kind) is not None:
        return f"[{word} …]"
    return word if option.field.default is dataclasses.MISSING else f"[{word}]"


def _add(group: Any, option: Option, hidden: bool = False) -> None:
    default = option.field.default
    shown = option.help.replace("%", "%%")
    choices = get_args(required(option.kind)) if get_origin(required(option.kind)) is Literal else ()
    if choices and not _short(choices):
        shown = f"{shown.rstrip('.')}: {', '.join(map(str, choices))}."
    if default not in (None, dataclasses.MISSING, "", (), ("",)) and default is not False:
        shown += f" [{'yes' if default is True else default}]"
    word = option.field.metadata.get("positional")
    if word is not None:
        many, optional = _element(option.kind) is not None, default is not dataclasses.MISSING
        group.add_argument(option.key, nargs="*" if many else "?" if optional else None, metavar=word, help=shown)
        return
    *short, name = (flag for flag in option.flags if "." not in flag)

    def read(text: str) -> Any:
        if "verbatim" in option.field.metadata:  # text in which none is a word like any other
            return text
        value = parse_value(option.kind, _unescaped(text) if "escapes" in option.field.metadata else text, name)
        return converted(option.kind, value, name)

    action = "store" if _element(option.kind) is None else Joined
    form: dict[str, Any] = {"dest": option.key, "action": action, "type": read, "metavar": _noun(option)}
    group.add_argument(*short, name, help=argparse.SUPPRESS if hidden else shown, **form)
    for spelling in option.flags:
        if "." in spelling:
            group.add_argument(spelling, help=argparse.SUPPRESS, **form)


class Joined(argparse.Action):
    """A list that grows each time its flag is typed; `none` empties it."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, None if values is None else [*(before or []), *values])


def _element(kind: Any) -> Any:
    """Type of a list option's elements; None when the option is not a list."""
    many = required(kind)
    return get_args(many)[0] if get_origin(many) is tuple else None


NOUNS = {
    "config": "FILE", "output": "PATH", "tasks": "FILE", "paths": "PATH", "tokenizer": "NAME|FILE",
    "validation": "[NAME=]PATH", "leave_out": "FILE",
    "init_from": "MODEL", "resume": "RUN", "against": "MODEL", "text": "TEXT", "token": "TEXT", "word": "TEXT",
    "stop": "TEXT", "system": "TEXT", "prompts": "FILE",
    "sample_prompt": "TEXT", "text_field": "NAME", "name": "NAME", "recipe": "NAME", "tag": "NAME", "untag": "NAME",
    "note": "TEXT", "quantity": "NAME", "why": "NAME", "explain": "RULE", "frozen": "NAME", "lora_targets": "NAME",
    "device": "NAME", "precision": "NAME", "cache_precision": "NAME", "parallel": "AXIS=N,…",
    "html": "FILE", "records": "FILE", "chat_template": "FILE", "reference": "MODEL", "teacher": "MODEL",
    "host": "ADDRESS",
}  # fmt: skip
"""What the value of an option is, where its type does not say."""


def _noun(option: Option) -> str:
    """What stands for an option's value in a help text: nothing for a switch, the words of a choice."""
    element = _element(option.kind)
    if get_origin(element) is Literal:
        return "{" + ",".join(map(str, get_args(element))) + "}"
    if element not in (None, str):
        return "A,B,…"
    kind = required(option.kind)
    if kind is bool:
        return "yes|no" if option.field.default is True else ""
    if get_origin(kind) is Literal and _short(get_args(kind)):
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    return {int: "N", float: "X"}.get(kind) or NOUNS.get(option.field.name, "WORD")


WIDEST = 40
"""Columns of an option's choices that stand beside its name; more of them stand in its help, where they may wrap."""


def _short(choices: Sequence[Any]) -> bool:
    return len(",".join(map(str, choices))) <= WIDEST


ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
"""What may follow a backslash where a shell hands over no line break."""


def _unescaped(text: str) -> str:
    return re.sub(r"\\([nrt\\])", lambda found: ESCAPES[found[1]], text)


SIZES = {"k": 3, "M": 6, "B": 9, "G": 9, "T": 12}
"""Letters after a number, and their power of ten."""


def _spelled_number(text: str) -> str:
    """32k, 7B, 1.4T as numbers with an exponent; anything else as it is."""
    number, letter = text[:-1], text[-1:]
    size = SIZES.get(letter if letter in SIZES else letter.upper() if letter in "bgt" else letter)
    return f"{number}e{size}" if size and number and number[-1].isdigit() and "e" not in number.lower() else text


def parse_value(kind: Any, text: str, name: str) -> Any:
    """The value that `text` spells for an option of this type."""
    if type(None) in get_args(kind) and text.lower() == "none":
        return None
    element = _element(kind)
    if element is not None:
        parts = [text] if element is str else text.split(",")
        if len(parts) > 1 and "" in parts:
            raise ConfigError(f"{name} is {text!r}: a value is missing before or after a comma")
        return parts if element is str else [parse_value(element, part, name) for part in parts]
    kind = required(kind)
    if kind is bool:
        if text.lower() in SWITCH_WORDS:
            return SWITCH_WORDS[text.lower()]
        raise ConfigError(f"{name} is {text!r}: expected yes or no")
    try:
        if kind in (int, float):
            text = _spelled_number(text)
        if kind is int:
            number = float(text)
            if number != int(number):
                raise ValueError
            return int(text.replace("_", "")) if text.replace("_", "").lstrip("+-").isdigit() else int(number)
        if kind is float:
            return float(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{name} is {text!r}: expected a {'whole ' if kind is int else ''}number") from error
    return text
