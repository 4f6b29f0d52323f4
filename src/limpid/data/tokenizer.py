"""Text to token ids and back, by a tokenizer that Hugging Face's libraries load with equal ids."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Int64
from tokenizers import decoders, models

from limpid.data.chat_template import ChatTemplate, Messages
from limpid.data.folder_settings import GENERATION, SETTINGS, TEMPLATE, FolderSettings, read_settings
from limpid.data.panics import is_panic, panics_unsaid
from limpid.data.words import splits_at_words
from limpid.errors import CheckpointError, DataError
from limpid.files import explained, one_line, read_whole, user_path, write_atomically
from limpid.manifest import MANIFEST, damage_within, write_manifest
from limpid.run import TOKENIZER_FILES, Run
from limpid.source import Adapted, Checkpoint, Model

Array = np.ndarray
END_OF_TEXT = "<|endoftext|>"
ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>")
"""How families of models spell the token that ends a document, ours first."""
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(OTHERS)}
"""Byte-level vocabularies spell each byte as one printable character (Radford et al. 2019): character to byte."""


LONE_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""How other vocabularies spell a byte that is part of a character they lack."""


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
        return encoding.ids, _sizes([start for start, _ in encoding.offsets], lone, text)

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


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Keep a tokenizer in a run's folder, with how it begins, ends and converses, so that `load_tokenizer` finds it."""
    write_atomically(folder / TOKENIZER_FILES[0], tokenizer.to_json().encode())
    if tokenizer.has_settings:
        _write_settings(folder, tokenizer)
    write_manifest(folder, TOKENIZER_FILES)


def _write_settings(folder: Path, tokenizer: Tokenizer) -> None:
    ids = {"bos_token_id": tokenizer.start, "eos_token_id": sorted(tokenizer.ends)}
    for name, content in ((SETTINGS, tokenizer.words), (GENERATION, ids)):
        write_atomically(folder / name, (json.dumps(content, ensure_ascii=False) + "\n").encode())
    if tokenizer.chat_template is not None:
        write_atomically(folder / TEMPLATE, tokenizer.chat_template.text.encode())


def tokenizer_damage(run: Run) -> str | None:
    """What is wrong with the tokenizer of a run; None when it is as it was written, or does not say."""
    with explained(f"cannot read {run.tokenizer_file}"):
        return damage_within(run.path)


def load_tokenizer(source: Model) -> Tokenizer:
    """The tokenizer of a run or of a Hugging Face folder.

    Raises  CheckpointError when it has none
    """
    if not source.tokenizer_file.is_file():
        raise CheckpointError(f"{source} has no tokenizer.json: save its tokenizer there, as AutoTokenizer does")
    if isinstance(source, Checkpoint) and (wrong := tokenizer_damage(source.run)):
        raise CheckpointError(
            f"{wrong}; bring the run's own back, of which model/ has a copy, and what it was tuned from; or delete "
            f"{source.run.path / MANIFEST} if only that is damaged"
        )
    tokenizer = Tokenizer.load(source.tokenizer_file)
    folders = {
        one.path: None
        for one in (source, source.base if isinstance(source, Adapted) else source)
        if not isinstance(one, Checkpoint)
    }
    if isinstance(source, Checkpoint) and (source.run.path / SETTINGS).is_file():  # it was tuned from such a folder
        folders = {source.run.path: None}
    if folders:
        tokenizer.take_settings(read_settings(*folders))
    return tokenizer


def spelled(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for; one with other symbols was added as plain text."""
    if all(symbol in BYTES for symbol in token):
        return bytes(BYTES[symbol] for symbol in token)
    return token.encode()


def _sizes(starts: Sequence[int], lone: Sequence[bool], text: str) -> list[int]:
    """Bytes from each token's first character to the next token's.

    Of tokens that start at one character, a lone byte has 1 of its bytes, the others share the rest evenly.
    """
    if not starts:
        return []
    place = np.concatenate([[0], np.cumsum([len(character.encode()) for character in text])])
    borders = place[np.maximum.accumulate(np.array([0, *starts[1:]]))]
    first = np.flatnonzero(np.diff(borders, prepend=-1))
    sizes = np.zeros(len(starts), np.int64)
    for begin, end in itertools.pairwise([*first, len(starts)]):
        left = int((place[-1] if end == len(starts) else borders[end]) - borders[begin])
        alone = [i for i in range(begin, end) if lone[i]][:left]
        sizes[alone] = 1
        sharing = [i for i in range(begin, end) if i not in alone] or alone
        for number, i in enumerate(sharing):
            rest = left - len(alone)
            sizes[i] += rest // len(sharing) + (number < rest % len(sharing))
    return [int(size) for size in sizes]


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


def printable(character: str) -> str:
    """A character, escaped as in a Python string where it would not be seen."""
    if "\udc80" <= character <= "\udcff":  # a byte that is no character by itself
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character if character.isprintable() and character != "\\" else repr(character)[1:-1]
