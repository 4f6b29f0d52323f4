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


@dataclass(frozen=True)
class ChatTemplate:
    """A template from a model's folder: a stranger's code, which sees plain values and runs in Jinja's sandbox."""

    text: str
    where: str  # the file it is from
    words: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token, …

    def render(self, messages: Messages) -> str:
        """The conversation as the model was taught it, up to where its own answer begins.

        Raises  DataError for what the template refuses, such as two turns of one speaker
        """
        from jinja2 import TemplateError

        plain = json.loads(json.dumps([{key: value for key, value in one.items() if value is not None}
                                       for one in messages]))  # fmt: skip
        try:
            return self._compiled.render(
                messages=plain, tools=None, documents=None, add_generation_prompt=True, **self.words
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise DataError(f"the chat template in {self.where} refuses these messages: {one_line(error)}") from error

    @cached_property
    def _compiled(self) -> Template:
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
