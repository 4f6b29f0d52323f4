"""Any bytes come back, from coded frames and plain ones; sizes are the cross-entropy; what is wrong is said."""

import io
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluation.small_models import TEXT, small_model
from tokenizers import Tokenizer as Plain
from tokenizers import decoders, models, normalizers, pre_tokenizers

from limpid.cli import main
from limpid.compression import compress_stream, decompress_stream
from limpid.compression.coder import CHUNK, Compressor, Decompressor, chunks
from limpid.compression.container import CODED, PLAIN, frames, read_header
from limpid.compression.lossless_tokenizer import LosslessTokenizer
from limpid.compression.predictor import Predictor, model_hash
from limpid.compression.report import lines
from limpid.config import ModelConfig
from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer, train_bpe
from limpid.data.tokenizer import Tokenizer
from limpid.errors import CheckpointError, DataError
from limpid.evaluation.token_scores import score_windows
from limpid.evaluation.windows import Windows
from limpid.model import Transformer
from limpid.model.export import save_folder


def lower_case() -> Tokenizer:
    """Byte-level, but what it gives back is lower case."""
    plain = Plain.from_str(byte_tokenizer().to_json())
    plain.normalizer = normalizers.Lowercase()
    return Tokenizer(plain)


def sentence_pieces() -> Tokenizer:
    """Spaces are marks, the first one is added, unknown characters are bytes."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"thecatdog"]
    vocabulary = {piece: id for id, piece in enumerate(dict.fromkeys(pieces))}
    plain = Plain(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    plain.pre_tokenizer = pre_tokenizers.Metaspace()
    plain.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
    return Tokenizer(plain)


def words() -> Tokenizer:
    """Whole words; everything else is unknown and lost."""
    plain = Plain(models.WordLevel(vocab={"<unk>": 0, "the": 1, "cat": 2}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(plain)


TOKENIZERS = {
    "bytes": byte_tokenizer,
    "bpe": lambda: train_bpe([TEXT], 400),
    "characters": lambda: character_tokenizer("abcdefgh .é"),
    "lower case": lower_case,
    "sentence pieces": sentence_pieces,
    "words": words,
}


@cache
def made(name: str) -> tuple[Predictor, LosslessTokenizer]:
    one = small_model(TOKENIZERS[name](), context=12)
    return Predictor(one.transformer, one.start), LosslessTokenizer(one.tokenizer)


def round_trip(name: str, contents: list[bytes], coded: bool) -> list[int]:
    """Frames of these chunks, decoded in order; returns their kinds."""
    predictor, spelling = made(name)
    predictor.reset()
    compressor = Compressor(predictor, spelling)
    made_frames = [compressor.coded(c) if coded else compressor.frame(c) for c in contents]
    predictor.reset()
    decompressor = Decompressor(predictor, spelling)
    assert [decompressor.content(frame) for frame in made_frames] == contents
    return [frame.kind for frame in made_frames]


CONTENT = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=30).map(str.encode),
    st.text("the cat dogé ▁\u200d🙂", max_size=30).map(str.encode),
    st.tuples(st.text(max_size=8), st.binary(max_size=8), st.text("the cat", max_size=8)).map(
        lambda parts: parts[0].encode() + parts[1] + parts[2].encode()
    ),
)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(contents=st.lists(CONTENT, max_size=3), coded=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_bytes_come_back(name: str, contents: list[bytes], coded: bool) -> None:
    round_trip(name, contents, coded)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_hard_bytes_come_back(name: str) -> None:
    hard = [
        b"", b"\0", b"\xff", bytes(range(256)), b"\xed\xa0\x80", b"\xf0\x9f\x99", b"\xc3", "\ufeffa\r\n".encode(),
        b"<|endoftext|>", b"  the  ", b"the", b" the", "e\u0301 é".encode(), "▁the".encode(), b"\xc3\xa9" * 9 + b"\xc3",
    ]  # fmt: skip
    for coded in (True, False):
        round_trip(name, hard, coded)


@given(st.binary(max_size=200), st.sampled_from(sorted(TOKENIZERS)))
@settings(max_examples=200, deadline=None)
def test_segments_join_to_what_was_given(content: bytes, name: str) -> None:
    spelling = made(name)[1]
    parts = [part if isinstance(part, bytes) else spelling.bytes_of(part) for part in spelling.segments(content)]
    assert b"".join(parts) == content


def test_what_does_not_compress_is_kept_as_it_is() -> None:
    noise = random.Random(0).randbytes(300)
    assert round_trip("bytes", [noise, noise], coded=False) == [PLAIN, PLAIN]
    assert CODED in round_trip("bpe", [TEXT.encode()], coded=True)


@given(st.binary(max_size=3000), st.integers(40, 400))
@settings(max_examples=50, deadline=None)
def test_chunks_join_to_the_stream_and_cut_no_character(content: bytes, size: int) -> None:
    import limpid.compression.coder as coder

    before = coder.CHUNK
    coder.CHUNK = size
    try:
        assert b"".join(chunks(io.BytesIO(content))) == content
        text = ("🙂é" * 200).encode()
        for part in chunks(io.BytesIO(text)):
            part.decode()
    finally:
        coder.CHUNK = before


def compressed(one, content: bytes, **options) -> tuple[bytes, object]:
    target = io.BytesIO()
    found = compress_stream(
        one.transformer, one.tokenizer, one.start, io.BytesIO(content), target, name="tiny", **options
    )
    return target.getvalue(), found


def restored(one, file: bytes) -> bytes:
    target = io.BytesIO()
    decompress_stream(one.transformer, one.tokenizer, one.start, io.BytesIO(file), target, where="it")
    return target.getvalue()


def sure(one, content: bytes):
    """The same model with an output that knows some of the bytes well, so that frames are coded."""
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=one.transformer.config.vocab_size) + 0.01
    with torch.no_grad():
        one.transformer.embed.tokens.weight *= 0.05
        if one.transformer.logits is not None:
            one.transformer.logits.weight[:] = 0
            one.transformer.logits.weight[:, 0] = torch.tensor(np.log(counts / counts.sum()), dtype=torch.float32)
            one.transformer.final_norm.weight[:] = 0
            one.transformer.final_norm.bias[:] = 0
            one.transformer.final_norm.bias[0] = 1
    return one


GPT2 = {
    "norm": "layer", "tied": False, "positions": "learned", "mlp": "plain", "activation": "gelu_tanh",
    "attention_bias": True, "attention_output_bias": True, "mlp_bias": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def knowing():
    return sure(small_model(context=32, name="knowing", **GPT2), TEXT.encode())


def test_the_size_is_the_cross_entropy(knowing) -> None:
    """And the cross-entropy is what evaluation finds in the same windows."""
    content = TEXT.encode() * 8
    file, found = compressed(knowing, content)
    over = found.size - found.overhead - found.bits / 8
    assert found.size == len(file)
    assert 0 < over < 0.005 * found.bits / 8 + 24  # a frame has 17 bytes of lengths and checksums, the coder a word
    tokens = np.array(knowing.tokenizer.encode(content.decode()))
    windows = Windows(32, 24, "sliding", knowing.start)  # a quarter of the context is read again
    nats = sum(float(j.loss.sum()) for j in score_windows(knowing.transformer, windows.of(tokens)))
    assert found.bits == pytest.approx(nats / np.log(2), rel=1e-4)
    assert restored(knowing, file) == content
    assert set(found.baselines) == {"gzip -9", "xz -6", "zstd -19"}


def test_the_cross_entropy_is_the_models_where_bytes_are_stored_as_they_are() -> None:
    """It expects digits, which the text has none of: more than 8 bits for each byte."""
    wrong = sure(small_model(context=32, name="wrong", **GPT2), b"0123456789" * 30)
    content = TEXT.encode()
    _, found = compressed(wrong, content)
    tokens = np.array(wrong.tokenizer.encode(content.decode()))
    nats = sum(
        float(j.loss.sum())
        for j in score_windows(wrong.transformer, Windows(32, 24, "sliding", wrong.start).of(tokens))
    )
    assert found.plain == len(content)
    assert found.cross_entropy > 8
    assert found.bits == pytest.approx(nats / np.log(2), rel=1e-4)
    table = next(line for line in lines(found, "text") if not isinstance(line, str))
    assert "stored as it is: the model is worse than 8 bits per byte" in list(table.columns[3].cells)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff\xfe", TEXT.encode() * 3])
def test_whole_files_come_back(knowing, content: bytes) -> None:
    file, found = compressed(knowing, content)
    assert restored(knowing, file) == content
    assert found.original == len(content)


def test_another_model_is_refused_in_one_line(knowing) -> None:
    file, _ = compressed(knowing, TEXT.encode())
    with pytest.raises(CheckpointError, match=r"compressed with another model: tiny, .*--model"):
        restored(small_model(context=32, seed=5, **GPT2), file)


def test_every_damaged_byte_is_noticed(knowing) -> None:
    file, _ = compressed(knowing, TEXT.encode())
    rng = random.Random(1)
    begin = file.index(b"tiny") + 4
    for place in [*range(begin, begin + 17), *rng.sample(range(begin, len(file)), 30)]:
        damaged = bytearray(file)
        damaged[place] ^= 1 << rng.randrange(8)
        with pytest.raises(DataError):
            restored(knowing, bytes(damaged))
    for end in (4, begin - 1, begin + 3, len(file) // 2, len(file) - 1):
        with pytest.raises(DataError):
            restored(knowing, file[:end])
    with pytest.raises(DataError, match="goes on after its end"):
        restored(knowing, file + b"x")


def test_a_machine_that_predicts_otherwise_is_told_so(knowing, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = compressed(knowing, TEXT.encode())
    plain = Predictor.weights
    monkeypatch.setattr(Predictor, "weights", lambda self: np.nextafter(plain(self), np.float32(0)))
    with pytest.raises(CheckpointError, match="predictions on this machine are not those"):
        restored(knowing, file)
    monkeypatch.setattr(Predictor, "probe", lambda self: read_header(io.BytesIO(file), "it").probe)
    with pytest.raises(DataError, match="predictions on this machine are not those"):
        restored(knowing, file)


def test_a_model_has_one_hash_wherever_it_lies(knowing, tmp_path) -> None:
    from limpid.loaded import open_model

    save_folder(
        tmp_path / "m", knowing.transformer.config, knowing.transformer.state_dict(),
        tokenizer_json=knowing.tokenizer.to_json(), end_of_text=256,
    )  # fmt: skip
    there = open_model(str(tmp_path / "m"))
    once, again = (
        model_hash(one.transformer, one.tokenizer, one.start) for one in (there, open_model(str(tmp_path / "m")))
    )
    assert once == again
    with torch.no_grad():
        next(there.transformer.parameters()).view(-1)[0] += 1e-3
    assert model_hash(there.transformer, there.tokenizer, there.start) != once


def test_frames_hold_at_most_a_chunk() -> None:
    predictor, spelling = made("bytes")
    predictor.reset()
    stream = io.BytesIO(bytes(CHUNK + 10))
    sizes = [len(part) for part in chunks(stream)]
    assert sizes == [CHUNK, 10]
    assert list(frames(io.BytesIO(b"\0" + bytes(8) + bytes(8)), "it")) == [(0, bytes(8))]
    assert spelling.segments(b"") == []


def test_files_in_and_out(knowing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    save_folder(
        tmp_path / "m", knowing.transformer.config, knowing.transformer.state_dict(),
        tokenizer_json=knowing.tokenizer.to_json(), end_of_text=256,
    )  # fmt: skip
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    assert main(["compress", "m", "a.txt"]) == 0
    told = capsys.readouterr().out
    assert "cross-entropy" in told
    assert "zstd -19" in told
    whole = (tmp_path / "a.txt.limpid").read_bytes()
    (tmp_path / "cut.limpid").write_bytes(whole[:-20])
    (tmp_path / "damaged.limpid").write_bytes(whole[:80] + bytes([whole[80] ^ 1]) + whole[81:])
    for words, said in (
        (["compress", "m", "a.txt"], "a.txt.limpid exists already"),
        (["compress", "m", "a.txt", "-o", "a.txt"], "is the file that is read"),
        (["compress", "m", "b.txt"], "cannot read b.txt"),
        (["compress", "m", "a.txt", "-o", "m"], "is a folder"),
        (["compress", "m", "a.txt", "-o", "n/a"], "there is no folder n"),
        (["compress", "n", "a.txt", "-f"], "n is not a run folder"),
        (["compress", "m", "m"], "cannot read m: Is a directory"),
        (["decompress", "cut.limpid"], "cut.limpid is cut short: copy it again"),
        (["decompress", "damaged.limpid"], "damaged.limpid is damaged"),
        (["decompress", "none.limpid"], "cannot read none.limpid"),
        (["compress", "m", "a.txt", "-f", "--weights", "int2"], "choose one of"),
        (["decompress", "a.txt", "-o", "b"], "was not made by limpid compress"),
        (["decompress", "a.txt"], "does not end in .limpid"),
        (["decompress", "nowhere"], "nowhere does not exist"),
        (["decompress", "a.txt.limpid"], "a.txt exists already"),
    ):
        assert main(words) == 2
        shown = capsys.readouterr().err
        assert said in shown
        assert shown.count("\n") == 1
    assert main(["decompress", "a.txt.limpid", "--output", "b.txt"]) == 0  # the model is named inside, and is here
    assert (tmp_path / "b.txt").read_bytes() == TEXT.encode()
    assert main(["compress", "m", "a.txt", "--weights", "int8", "-o", "c.limpid", "--json"]) == 0
    (tmp_path / "m").rename(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["decompress", "c.limpid", "-o", "c.txt"]) == 2
    assert "give the model with --model" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*writing"))
    assert main(["decompress", "c.limpid", "-o", "c.txt", "--model", "elsewhere"]) == 0
    assert (tmp_path / "c.txt").read_bytes() == TEXT.encode()


def test_streams_in_and_out_with_any_number_of_threads(knowing, tmp_path: Path) -> None:
    save_folder(
        tmp_path / "m", knowing.transformer.config, knowing.transformer.state_dict(),
        tokenizer_json=knowing.tokenizer.to_json(), end_of_text=256,
    )  # fmt: skip

    def limpid(*words: str, given: bytes, threads: int) -> subprocess.CompletedProcess:
        counts = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
        return subprocess.run(
            [sys.executable, "-m", "limpid", *words],
            input=given, capture_output=True, cwd=tmp_path, check=True, env=os.environ | counts,
        )  # fmt: skip

    done = limpid("compress", "m", given=TEXT.encode(), threads=1)
    assert b"cross-entropy" in done.stderr
    assert limpid("decompress", given=done.stdout, threads=2).stdout == TEXT.encode()


STRETCHED = {"rotary_scaling": "linear", "rotary_factor": 2.0, "mlp": "plain", "num_kv_heads": 1, "attention_window": 5}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "095d4997850c7928142149eb3f2c8fdb"), (STRETCHED, "f41aaf8eb646b56fa3dc68fbb5d27585")],
)
def test_files_of_earlier_versions_know_their_model(options: dict, expected: str) -> None:
    """The hash in a file's header must not change with how configurations are kept."""
    one = byte_tokenizer()
    sizes = {"vocab_size": one.vocab_size, "context_length": 16, "d_model": 8, "num_layers": 1, "num_heads": 2}
    model = Transformer(ModelConfig(**sizes, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert model_hash(model, one, one.end_of_text).hex() == expected
