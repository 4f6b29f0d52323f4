"""Text to token ids and back, by a tokenizer that Hugging Face's libraries load with equal ids."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Int64
from tokenizers import decoders, models

from limpid.data.chat_template import ChatTemplate, Messages
from limpid.data.folder_settings import FolderSettings
from limpid.data.panics import is_panic, panics_unsaid
from limpid.data.token_spelling import BYTES, LONE_BYTE, printable, sizes_of, spelled
from limpid.data.words import splits_at_words
from limpid.errors import DataError
from limpid.files import one_line, read_whole, user_path

Array = np.ndarray
END_OF_TEXT = "<|endoftext|>"
ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>")
"""How families of models spell the token that ends a document, ours first."""


class Tokenizer:
    """A tokenizer whose special tokens appear only where limpid puts them, never by being spelled in a text."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # a text that spells a special token is still text
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        special = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self.end_of_text: int | None = next((special[end] for end in ENDS if end in special), None)
        self.start = self.end_of_text
        """The token before a text's first."""
        self.ends = frozenset(() if self.end_of_text is None else (self.end_of_text,))
        """The tokens that end a text that a model generates."""
        self.end = self.end_of_text
        """The token at the end of a text to learn."""
        self.chat_template: ChatTemplate | None = None
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self._special = set(special.values())
        self.special_words: dict[str, int] = special
        """Special tokens as they are spelled, and their ids."""
        self.byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        """Whether texts are joined from the bytes of their tokens, each by itself."""
        self.splits_at_words = splits_at_words(tokenizer)
        whole = isinstance(tokenizer.model, models.BPE) and tokenizer.pre_tokenizer is None
        single = whole and all(len(token) == 1 for token in tokenizer.get_vocab(with_added_tokens=False))
        self._characters = frozenset(tokenizer.get_vocab(with_added_tokens=False)) if single else None

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without any special token.

        Raises  DataError for a character that the vocabulary lacks, or that UTF-8 cannot hold
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, on all processors."""
        for text in texts:
            self._require_known(text)
        with _explained("the tokenizer fails on this text", "use another"):
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a text that a model is to continue, with the tokens that its tokenizer puts around one."""
        self._require_known(text)
        with _explained("the tokenizer fails on this text", "use another"):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=True).ids
        return ids

    def encode_chat(self, messages: Messages) -> list[int]:
        """Ids of a conversation in the model's own form, up to where its answer begins.

        Raises  DataError where there is no such form, and for a message that spells one of its special tokens
        """
        if self.chat_template is None:
            raise DataError("the model has no chat template: give a prompt, or a model that was taught to converse")
        spelled_in = json.dumps(messages, ensure_ascii=False)
        if word := next((word for word in self.special_words if json.dumps(word)[1:-1] in spelled_in), None):
            raise DataError(f"a message spells {word}, which ends or begins a turn for this model: leave it out")
        text = self.chat_template.render(messages)
        self._require_known(text)
        self._tokenizer.encode_special_tokens = False  # here the template spells them, and means them
        try:
            with _explained("the tokenizer fails on this conversation", "use another"):
                ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        finally:
            self._tokenizer.encode_special_tokens = True
        return ids

    def encode_with_places(self, texts: Sequence[str], spelled: bool) -> list[tokenizers.Encoding]:
        """Tokens of each text with their places in it, which leave nothing out that a token holds, blanks included.

        spelled  whether special tokens that a text spells are meant; else it is text like any other
        """
        for text in texts:
            self._require_known(text)
        self._with_places.encode_special_tokens = not spelled
        with _explained("the tokenizer fails on these texts", "use another"):
            return self._with_places.encode_batch(list(texts), add_special_tokens=False)

    @cached_property
    def _with_places(self) -> tokenizers.Tokenizer:
        """Without what works on tokens afterwards: that of byte-level vocabularies takes blanks from their places."""
        form = json.loads(self.to_json()) | {"post_processor": None}
        return tokenizers.Tokenizer.from_str(json.dumps(form))

    @cached_property
    def before_text(self) -> tuple[int, ...]:
        """The tokens that are put before every text, such as a first one."""
        return tuple(itertools.takewhile(self._special.__contains__, self._tokenizer.encode("a").ids))

    def take_settings(self, settings: FolderSettings) -> None:
        """Begin, end and converse as the folder of a tokenizer says."""
        starts = (self.special_id(start) if isinstance(start, str) else start for start in settings.starts)
        known = (start for start in starts if start is not None and 0 <= start < self.vocab_size)
        self.start = next(known, self.end_of_text)
        if settings.ends is not None:
            self.ends = frozenset(settings.ends)
        own = None if settings.end is None else self.special_id(settings.end)
        self.end = self.end if own is None else own
        self.chat_template = settings.chat_template

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of an id in a file: the shortest that holds all of them."""
        return np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    @property
    def has_settings(self) -> bool:
        """Whether it begins, ends or converses otherwise than its own file says."""
        usual = self.end_of_text
        ends = frozenset(() if usual is None else (usual,))
        return (self.start, self.ends, self.end, self.chat_template) != (usual, ends, usual, None)

    @property
    def words(self) -> dict[str, str]:
        """bos_token, eos_token and the like, as its folder spells them."""
        spelled: dict[int | None, str] = {id: word for word, id in self.special_words.items()}
        own = {"bos_token": spelled.get(self.start), "eos_token": spelled.get(self.end)}
        known = {name: word for name, word in own.items() if word is not None}
        return known if self.chat_template is None else {**known, **self.chat_template.words}

    def encode_with_sizes(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of `text`, and how many of its bytes of UTF-8 each stands for; the sizes add up to the text's."""
        self._require_known(text)
        with _explained("the tokenizer fails on this text", "use another"):
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        total = len(text.encode())
        if self.byte_level:
            sizes = [len(spelled(token)) for token in encoding.tokens]
            if sum(sizes) == total:
                return encoding.ids, sizes
        lone = [LONE_BYTE.fullmatch(token) is not None for token in encoding.tokens]
        return encoding.ids, sizes_of([start for start, _ in encoding.offsets], lone, text)

    def bytes_of(self, id: int) -> bytes | None:
        """The bytes that a token of a byte-level vocabulary adds to a text; None for ids outside of it."""
        token: str | None = self._tokenizer.id_to_token(id)
        return None if token is None or id in self._special else spelled(token)

    @cached_property
    def sizes(self) -> Int64[Array, " vocabulary"] | None:
        """Bytes of text that each token stands for; None where that depends on the text."""
        form = json.loads(self._tokenizer.to_str())
        changed = form["normalizer"] or '"add_prefix_space": true' in json.dumps(form["pre_tokenizer"])
        if changed or not (self.byte_level or self._characters):
            return None
        tokens = [self._tokenizer.id_to_token(id) for id in range(self.vocab_size)]
        spell = spelled if self.byte_level else str.encode
        kept = [token if token is not None and id not in self._special else "" for id, token in enumerate(tokens)]
        return np.array([len(spell(token)) for token in kept], np.int64)

    def special_id(self, content: str) -> int | None:
        """Id of the special token that is spelled `content`, if there is one."""
        try:
            id: int | None = self._tokenizer.token_to_id(content)
        except UnicodeEncodeError:  # half of a surrogate pair, which no token is
            return None
        return id if id in self._special else None

    def _require_known(self, text: str) -> None:
        if self._characters is not None and (unknown := set(text) - self._characters):
            position = min(text.index(character) for character in unknown)
            character = text[position]
            raise DataError(
                f"character {character!r} (U+{ord(character):04X}) at position {position} is not among the tokenizer's "
                f"{len(self._characters)} characters: leave it out, or use --tokenizer bytes or bpe, which know all"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"character {text[error.start]!r} at position {error.start} is half of a surrogate pair, "
                "which UTF-8 cannot hold: remove it"
            ) from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that form no character become U+FFFD."""
        text: str = self._tokenizer.decode([int(id) for id in ids], skip_special_tokens=False)
        return text

    def token_text(self, id: int) -> str:
        """One token in printable characters, escaped as in a Python string: a newline is \\n, a lone byte \\xe2."""
        token: str | None = self._tokenizer.id_to_token(id)
        if token is None:
            return f"<{id}>"
        if id in self._special:
            return token
        if self.byte_level and all(symbol in BYTES for symbol in token):
            text = spelled(token).decode(errors="surrogateescape")
        else:
            text = self.decode([id])
            text = token if "\ufffd" in text or not text else text
        return "".join(map(printable, text))

    def vocabulary(self) -> dict[str, int]:
        """The number of each token, by its spelling in the tokenizer's file."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        text: str = self._tokenizer.to_str()
        return text

    @classmethod
    def from_json(cls, text: str, where: str = "tokenizer.json") -> Tokenizer:
        """A tokenizer from the text of a tokenizer.json; raises DataError naming `where` when it is none."""
        with _explained(
            f"{where} is not a tokenizer of the Hugging Face tokenizers library",
            "give another tokenizer.json, or bpe, bytes or characters",
        ):
            return cls(tokenizers.Tokenizer.from_str(text))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """A tokenizer from a tokenizer.json."""
        return cls.from_json(read_tokenizer_file(path), str(path))


@contextlib.contextmanager
def _explained(what: str, way_out: str) -> Iterator[None]:
    """Turn what the library comes up with into one line: it raises plain exceptions, and panics in Rust."""
    try:
        with panics_unsaid():
            yield
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            raise DataError(f"{what} ({one_line(error)}): {way_out}") from error
        raise


def read_tokenizer_file(path: str | Path) -> str:
    """Text of a tokenizer.json; raises DataError when there is none at `path`."""
    expected = "expected bpe, bytes, characters, or the path of a tokenizer.json"
    path = user_path(path)
    if path.is_dir():
        raise DataError(f"tokenizer {path} is a folder: {expected}, for example {path / 'tokenizer.json'}")
    if not path.exists():
        raise DataError(f"tokenizer is {str(path)!r}, and there is no such file: {expected}")
    try:
        return read_whole(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read tokenizer {path} ({error}): {expected}") from error
