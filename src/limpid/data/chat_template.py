"""A model's own form of a conversation: the Jinja template that its tokenizer brings, run as transformers runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from limpid.errors import DataError
from limpid.files import one_line

if TYPE_CHECKING:
    from jinja2 import Template

Messages = Sequence[Mapping[str, Any]]
"""A conversation as OpenAI's messages have it: {"role": …, "content": …} each."""


FAILURES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What the expressions of a template come to, beside Jinja's own errors."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template from a model's folder: a stranger's code, which sees plain values and runs in Jinja's sandbox."""

    text: str
    where: str  # the file it is from
    words: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token, …

    def render(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the model was taught it, by default up to where its own answer begins.

        tools    functions that the model may call, as JSON schemas
        options  variables of the template's own, such as enable_thinking
        Raises  DataError for what the template refuses, such as two turns of one speaker
        """
        return self.write(plain_values(messages), plain_values(tools), add_generation_prompt, options)

    def write(
        self, messages: Any, tools: Any, add_generation_prompt: bool, options: Mapping[str, Any] | None = None
    ) -> str:
        """The same of values that are plain already."""
        from jinja2 import TemplateError

        variables = {"documents": None, **self.words, **(options or {})}
        variables |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            return self.compiled.render(variables)
        except (TemplateError, *FAILURES) as error:
            raise DataError(f"the chat template in {self.where} refuses these messages: {one_line(error)}") from error

    @property
    def writes_date(self) -> bool:
        """Whether what it writes depends on the day."""
        return "strftime_now" in self.text

    @cached_property
    def compiled(self) -> Template:
        """The template, read; raises DataError where it cannot be."""
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        around = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), jinja2.ext.loopcontrols]
        )
        around.filters["tojson"] = _to_json
        around.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        try:
            return around.from_string(self.text)
        except jinja2.TemplateError as error:
            raise DataError(f"the chat template in {self.where} cannot be read: {one_line(error)}") from error


def plain_values(value: Any) -> Any:
    """A copy in plain values of JSON, of whose objects no field is null: tables give every record every field."""
    return _without_nulls(json.loads(json.dumps(value)))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _generation_tag() -> type[Any]:
    """`{% generation %}`, which marks an answer's tokens for training: here what it holds is text like any other."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
    """Jinja's own filter escapes what HTML reads as tags."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)


def _refuse(message: str) -> str:
    from jinja2 import TemplateError

    raise TemplateError(message)
