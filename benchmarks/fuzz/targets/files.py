"""What others write, or limpid for others: tokenizers, models, adapters, logs, records, texts, compressed files."""

import gzip
import json
import shutil
import struct
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from benchmarks.fuzz import seeds
from benchmarks.fuzz.targets.target import Read

from limpid.compression import decompress_stream
from limpid.compression.container import MAGIC
from limpid.config.tuning import KINDS
from limpid.data.chat_template import ChatTemplate
from limpid.data.formats import chunks_of, records_of
from limpid.data.new_tokenizer import character_tokenizer, train_bpe
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.bad_row import BadRow
from limpid.data.tuning.shapes import exchanges_of
from limpid.data.tuning.written import Writer
from limpid.doctor.logs import read_record
from limpid.doctor.report import diagnose
from limpid.loaded import open_model
from limpid.model.convert import load_folder
from limpid.model.peft_files import load_adapter
from limpid.planning.laws.fit import points_of
from limpid.planning.laws.runs import points
from limpid.planning.options import Options
from limpid.planning.report import plan_subject
from limpid.planning.subject import subject
from limpid.run import Run

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"


def tokenizer(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """tokenizer.json, and what it makes of a text."""
    file = folder / "tokenizer.json"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        made = Tokenizer.load(file)
        _ = made.sizes, made.words
        made.decode(made.encode("the cats"))
        made.encode_with_sizes("dog")
        made.token_text(3)

    made = [train_bpe(["the cat sees the cat"] * 9, 300), character_tokenizer("the catsdog")]
    return [(stock / "runs/a/tokenizer.json").read_bytes(), *(one.to_json().encode() for one in made)], read


def template(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """tokenizer_config.json with its chat template, in a model's folder."""
    place = shutil.copytree(stock / "runs/a/model", folder / "model")
    chat = [{"role": "user", "content": "the cat?"}]
    settings = {"bos_token": None, "eos_token": "<|endoftext|>", "chat_template": TEMPLATE, "model_max_length": 8}

    def read(data: bytes) -> None:
        (place / "tokenizer_config.json").write_bytes(data)
        opened = open_model(place)
        if opened.tokenizer.chat_template is not None:
            opened.tokenizer.encode_chat(chat)

    return [json.dumps(settings).encode()], read


def folder(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """A folder of Hugging Face: config.json and weights."""
    place = shutil.copytree(stock / "runs/a/model", folder / "model")
    valid = {place / name: (place / name).read_bytes() for name in ("config.json", "model.safetensors")}

    def read(data: bytes) -> None:
        for file, content in valid.items():
            file.write_bytes(content)
        [*valid][data.lstrip()[:1] != b"{"].write_bytes(data)
        load_folder(place)

    return [*valid.values()], read


def adapter(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """adapter_config.json and its tensors."""
    place = shutil.copytree(stock / "runs/b/adapter", folder / "adapter")
    sizes = Run(stock / "runs/b").read_config().model
    settings, tensors = place / "adapter_config.json", place / "adapter_model.safetensors"
    valid = {file: file.read_bytes() for file in (settings, tensors)}

    def read(data: bytes) -> None:
        for file, content in valid.items():
            file.write_bytes(content)
        (settings if data.lstrip()[:1] == b"{" else tensors).write_bytes(data)
        load_adapter(place, sizes)

    return [*valid.values()], read


def architecture(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """config.json of a model, planned whole."""
    file = folder / "config.json"
    ours = (stock / "runs/a/model/config.json").read_bytes()
    mixture = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    state = {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 50}

    def read(data: bytes) -> None:
        file.write_bytes(data)
        plan_subject(subject(file), Options())

    return [ours, json.dumps(json.loads(ours) | mixture).encode(), json.dumps(state).encode()], read


def law(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Runs in a table, for a scaling law."""

    def read(data: bytes) -> None:
        file = folder / ("law.jsonl" if data.lstrip()[:1] in (b"{", b"[") else "law.csv")
        file.write_bytes(data)
        found = points([str(file)])
        points_of(*zip(*found, strict=True))

    rows = [{"parameters": 1e6 * n, "tokens": 1e8 * (1 + n % 3), "loss": 3.0 - n / 10} for n in range(1, 9)]
    return [seeds.law(), seeds.lines(rows)], read


def compressed(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """A compressed file, its frames' own checksums put right."""
    opened = open_model(stock / "runs/a")

    def read(data: bytes) -> None:
        content = BytesIO(_checked(data))
        decompress_stream(opened.transformer, opened.tokenizer, opened.start, content, BytesIO(), where="it")

    return [(stock / "packed.limpid").read_bytes()], read


def _checked(data: bytes) -> bytes:
    """The same with the checksum of every frame's bytes as it should be."""
    content, at = bytearray(data), len(MAGIC) + 26
    at += 1 + content[at] if at < len(content) else 0
    while at + 17 <= len(content) and content[at] in (1, 2):
        size = struct.unpack_from("<I", content, at + 5)[0]
        if size > len(content):
            break
        struct.pack_into("<I", content, at + 13, zlib.crc32(content[at : at + 9] + content[at + 17 : at + 17 + size]))
        at += 17 + size
    return bytes(content)


def log(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Other tools' logs, read and diagnosed."""

    def read(data: bytes) -> None:
        one_line = ".jsonl" if data.lstrip()[:1] == b"{" else ".csv" if data[:4] == b"step" else ".log"
        file = folder / f"log{'.json' if b'log_history' in data else one_line}"
        file.write_bytes(data)
        diagnose(read_record(file))

    return seeds.logs(), read


def events(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """TensorBoard's events."""
    file = folder / "events.out.tfevents.1"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        read_record(file)

    return [seeds.events(folder / "made")], read


def records(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Records to tune on, of every form and for every kind of objective."""
    file, tokens = folder / "records.jsonl", open_model(stock / "runs/a").tokenizer
    writers = [Writer(tokens, None), Writer(tokens, ChatTemplate(TEMPLATE, "here", {}))]

    def read(data: bytes) -> None:
        file.write_bytes(data)
        for record in records_of(file, "records.jsonl"):
            for kind in dict.fromkeys(KINDS.values()):
                with suppress(BadRow):
                    for exchange in exchanges_of(record.value, kind, "text", record.name):
                        for writer in writers:
                            writer.examples(exchange, record.name)

    return [seeds.lines(seeds.CHAT)], read


def text(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Text in JSONL, JSON, tables and archives."""
    rows = seeds.lines([{"text": "the cat", "id": 1}, {"text": "a dog"}])
    endings = {b"\x1f\x8b": ".jsonl.gz", b"PK": ".zip", b"[{": ".json", b'{"': ".jsonl"}

    def read(data: bytes) -> None:
        ending = endings.get(data[:2], ".csv" if b"," in data[:20] else ".txt")
        file = folder / f"text{ending}"
        file.write_bytes(data)
        for _ in chunks_of(file, file.name, "text"):
            pass

    return [rows, gzip.compress(rows), b'[{"text": "a"}]', b"id,text\n1,the cat\n2,a dog\n", b"plain text"], read
