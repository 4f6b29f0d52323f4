"""What a user gets wrong: one line that names it, and no traceback."""

import gzip
import os
import resource
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cli.typed import refused
from limpid.cli import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tarin", "did you mean train?"),
        ("data tokenise corpus", "did you mean tokenize?"),
        ("train corpus --device cuda", "CUDA_VISIBLE_DEVICES"),
        ("train corpus --vocab-size 3", "--tokenizer-vocab-size trains a smaller tokenizer"),
        ("train corpus --widht 3", "--widht"),
        ("train corpus --n-embd 64", "--d-model 64 does not divide"),
        ("train corpus --d-model 25 --num-heads 3", "--d-model 25 does not divide into --num-heads 3"),
        ("train corpus --num-heads 4 --num-kv-heads 3", "--num-kv-heads 3"),
        ("train corpus --max-steps none", "none"),
        ("train corpus --optimizer adamm", "adamm"),
        ("train nowhere.txt", "nowhere.txt"),
        ("train empty.txt", "empty"),
        ("train tiny.txt --tokenizer bytes", "2 tokens"),
        ("train binary.bin", "binary.bin"),
        ("train latin.txt", "latin.txt"),
        ("train broken.gz", "broken.gz"),
        ("train broken.jsonl", "broken.jsonl"),
        ("train --config nowhere.toml", "nowhere.toml"),
        ("train --config wrong.toml", "wrong.toml"),
        ("train corpus --init-from nowhere", "nowhere"),
        ("train corpus --init-from gemma", "gemma"),
        ("train --resume nowhere", "nowhere"),
        ("train --resume small --learning-rate 3", "learning-rate"),
        ("trace nowhere", "nowhere"),
        ("trace small --step 9", "9"),
        ("trace small --step 0", "0"),
        ("trace small --step -2", "2"),
        ("trace small --quantity blocks.0.attention.scorse", "blocks.0.attention.scores"),
        ("trace small --quantity blocks.7.mlp.up", "blocks.7.mlp.up"),
        ("trace small --quantity transformer.h.0.attn.c_attn.weight", "blocks.0.attention.query.weight"),
        ("trace notarecord", "notarecord"),
        ("trace runs/small/model", "--text"),
        ("trace runs/small/model --text x --step 3", "--step"),
        ("trace truncated --text hello", "truncated"),
        ("generate small " + 40 * "x", "40 tokens"),
        ("generate small a --temperature -1", "temperature"),
        ("generate nowhere a", "nowhere"),
        ("generate truncated a", "truncated"),
        ("generate", "MODEL"),
        ("chat nowhere", "nowhere"),
        ("train nowhere --minutes 5 --schedule cosine", "--schedule is cosine"),
        ("train nowhere.txt --name last", "nowhere.txt does not exist"),
        ("train corpus --name last", "stands for something else"),
        ("train corpus --name=", "--name '' is none: choose a name such as runs/first"),
        (f"train corpus --name {'x' * 300}", "File name too long; choose a shorter name"),
        ("train corpus --threads 100000", "it must lie in [0, 8192]"),
        ("train corpus --threads 8000", "more threads than that wait for each other"),
        ("train corpus --max-steps 9 --record-steps 10", "--record-steps names step 10"),
        ("train corpus --max-steps 9 --warmup-steps 10", "--warmup-steps is 10, and the run has 9 steps"),
        ("train corpus --tokenizer bytes --tokenizer-vocab-size 500", "its own: leave one of them out"),
        ("train corpus --init-from small --d-model 48", "leave out --d-model"),
        ("train corpus --init-from small --tokenizer bpe", "leave out --tokenizer"),
        ("train corpus --d-model 6000000", "of memory at least, and there are"),
        ("train hf:", "hf: names no dataset"),
        ("generate small a --num-beams 4 --temperature 0.8", "and --temperature is 0.8: beam search draws nothing"),
        ("generate small a --num-beams 100000000000", "ask for fewer beams"),
        ("generate small a --threads 8000", "more threads than that wait for each other"),
        ("train corpus --init-from small@99", "--init-from small@99: runs/small holds no checkpoint after step 99"),
        ("train corpus --init-from small@-1", "runs/small@-1 names no step"),
        (
            "train corpus --positions learned --rotary-scaling linear --rotary-factor 2",
            "--rotary-scaling is linear, which does nothing without --positions rotary",
        ),
        ("train corpus --rotary-factor 4", "--rotary-factor is 4.0, which does nothing without a --rotary-scaling"),
        ("train corpus --rotary-scaling yarn --rotary-factor 2 --rotary-original-context 0", "original-context is 0"),
        (
            "train corpus --rotary-high 5",
            "--rotary-high is 5.0, which does nothing without --rotary-scaling llama3 or yarn",
        ),
        ("train corpus --decay-fraction 0.5", "does nothing without --schedule warmup_stable_decay"),
        ("train corpus --early-stopping 3 --eval-steps 0", "without evaluations: --eval-steps is 0"),
        ("train corpus --report-to none,wandb", "--report-to is none,wandb: name trackers, or none alone"),
        ("train corpus --validation web=", "--validation is web=: expected a file or folder, or NAME=PATH"),
        ("train corpus --lora-alpha 8", "--lora-alpha is 8.0, which does nothing without a --lora-rank"),
        ("evaluate small --tasks=", "'' is no path"),
        ("train tiny.txt --tokenizer bytes --context-length 9", "or lower --validation-fraction"),
        ("train caf\udce9.txt", "paths is 'caf\\udce9.txt', which UTF-8 cannot hold"),
        ("train corpus --text-field \udfff", "--text-field is '\\udfff', which UTF-8 cannot hold"),
        ("generate small a --repetition-penalty 5e-324", "--repetition-penalty is 4.94066e-324"),
        ("equations softmax --paper nobody", "no equation matches 'softmax', 'nobody'"),
        ("train corpus --windowed-blocks 0", "which does nothing without an --attention-window"),
        ("train ~nobodyatall/text.txt", "~nobodyatall/text.txt begins with a home that does not exist"),
        ("evaluate small ~nobodyatall/text.txt", "a home that does not exist"),
        (f"train {'x' * 100_000}", "xxx…: File name too long"),
        (f"trace {'x' * 100_000}", "xxx…: File name too long"),
        (f"evaluate small corpus --output {'x' * 100_000}", "xxx…: File name too long"),
        (f"train corpus --tokenizer bytes --sample-prompt {'x' * 500}", "--sample-prompt 'xxxxx"),
        (f"generate small {'x' * 500}", "the prompt 'xxxxxxx"),
        ("compress small corpus/00.txt -o runs/small/config.toml -f", "config.toml is a file of the model runs/small"),
        ("evaluate small --tasks between.jsonl", "the right answer is 0.5, which lies between two"),
        ("doctor vast.jsonl", "vast.jsonl"),
        ("trace small --worked", "--worked has no use for RUN"),
        ("trace --worked --step 3 --text x", "--worked has no use for --step and --text"),
        ("trace small --rows --quantity loss", "--rows has no use for --quantity"),
        ("trace small --output step.json", "a recorded step ends in .safetensors"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    there: Path, capsys: pytest.CaptureFixture[str], words: str, told: str
) -> None:
    Path("empty.txt").write_text("")
    Path("tiny.txt").write_text("ab")
    Path("binary.bin").write_bytes(bytes(range(256)) * 40)
    Path("latin.txt").write_bytes("naïve über\n".encode("latin-1") * 40)
    Path("broken.gz").write_bytes(gzip.compress(bytes(ord("a") + i * i % 23 for i in range(9999)))[:-20])
    Path("broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    Path("wrong.toml").write_text("[model]\nd_model = 'wide'\n")
    Path("notarecord").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    Path("between.jsonl").write_text('{"query": "a", "choices": ["b", "c"], "gold": 0.5}\n')
    Path("vast.jsonl").write_text(f'{{"step": 1, "loss": {"9" * 5000}}}\n')
    Path("gemma").mkdir(exist_ok=True)
    Path("gemma/config.json").write_text('{"model_type": "gemma"}')
    if not Path("truncated").exists():
        Path("truncated").mkdir()
        for name in ("config.json", "tokenizer.json"):
            Path("truncated", name).write_bytes(Path("runs/small/model", name).read_bytes())
        weights = Path("runs/small/model/model.safetensors").read_bytes()
        Path("truncated/model.safetensors").write_bytes(weights[: len(weights) // 2])
    capsys.readouterr()
    assert told in refused(capsys, *words.split())


@pytest.mark.parametrize("words", [("train", "-"), ("compress", "small", "-"), ("decompress",), ("chat", "small")])
def test_without_standard_input_nothing_is_read_from_it(
    there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    output = () if words[0] in ("train", "chat") else ("-o", "out")
    assert "standard input is closed" in refused(capsys, *words, *output)


def test_a_name_with_a_line_break_stays_on_one_line(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none␊" in refused(capsys, "train", "corpus", "--config", "none\n")
    assert "none␊" in refused(capsys, "trace", "none\n")


def test_a_pipe_to_which_nobody_writes_is_not_awaited_for_ever(
    there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpid.files.WRITER_SECONDS", 0.05)
    os.mkfifo("pipe")
    for words in (
        ("train", "pipe"),
        ("train", "corpus", "--config", "pipe"),
        ("train", "corpus", "--tokenizer", "pipe"),
        ("evaluate", "small", "--tasks", "pipe"),
        ("doctor", "pipe"),
        ("compress", "small", "pipe", "-o", "out"),
    ):
        assert "pipe is a pipe, and nobody came to write to it" in refused(capsys, *words)
    Path("pipe").unlink()


def test_a_device_without_end_is_left_at_some_point(
    there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpid.files.LONGEST_STREAM", 1000)
    assert "/dev/zero gave 1,000 bytes and came to no end" in refused(capsys, "train", "--config", "/dev/zero")


def test_a_run_that_lost_its_tokenizer_is_told_where_a_copy_lies(there: Path, capsys) -> None:
    shutil.copytree("runs/small", "runs/wordless", dirs_exist_ok=True)
    Path("runs/wordless/tokenizer.json").unlink()
    assert "has no tokenizer.json: bring it back, model/ has a copy" in refused(capsys, "generate", "wordless", "a")
    shutil.rmtree("runs/wordless")


def test_a_pickle_is_never_opened(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("pickled")
    folder.mkdir()
    folder.joinpath("config.json").write_bytes(Path("runs/small/model/config.json").read_bytes())
    folder.joinpath("pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    assert "safetensors" in refused(capsys, "trace", "pickled", "--text", "x")
    assert not Path("opened").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "small", "logitz[0, 0, 1]"], "did you mean logits"),
        (["explain", "small", "logits[0, 0"], "'logits[0, 0' is no name: an index stands behind it, in one pair of"),
        (["explain", "small", "logits[0][1]"], "'logits[0]' is no name: an index stands behind it, in one pair of"),
        (["explain", "small", "blocks.0.attention.score"], "did you mean blocks.0.attention.scores"),
        (["trace", "small", "--quantity", "grad(logitz)"], "did you mean logits"),
        (["explain", "small"], "limpid explain small 'logits[0, 0, 7]'"),
    ],
)
def test_what_no_step_has_is_refused_before_one_is_redone(there: Path, capsys, monkeypatch, words, said: str) -> None:
    monkeypatch.setattr("limpid.training.opening.recorded", None)
    assert said in refused(capsys, *words)


def test_no_memory_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """More than any machine has, asked of PyTorch where no planner was asked before."""
    from limpid.verbs import generate

    monkeypatch.setattr(generate, "verb", lambda words: torch.empty(1 << 50).sum())
    assert "memory ran out" in refused(capsys, "generate", "small")


def test_a_file_for_whose_mapping_no_memory_is_left_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from limpid.verbs import generate

    def mapped(words: Sequence[str]) -> int:
        raise RuntimeError("unable to mmap 68432 bytes from file <model.safetensors>: Cannot allocate memory (12)")

    monkeypatch.setattr(generate, "verb", mapped)
    assert "memory ran out" in refused(capsys, "generate", "small")


def without_memory(words: Sequence[str]) -> int:
    """What CPython says of a module that gets no memory while it is loaded, in a process that has none left."""
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 20), resource.RLIM_INFINITY))
    raise SystemError("<function _find_and_load> returned NULL without setting an exception")


def test_an_extension_that_fails_without_a_reason_lacks_memory_only_where_none_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from limpid.verbs import generate

    before = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setattr(generate, "verb", without_memory)
    try:
        assert "memory ran out" in refused(capsys, "generate", "small")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

    def bare(words: Sequence[str]) -> int:
        raise SystemError("of another cause")

    monkeypatch.setattr(generate, "verb", bare)
    with pytest.raises(SystemError, match="of another cause"):
        main(["generate", "small"])


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["plan", "gpt2"], ["learn"]])
def test_output_that_finds_no_room_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", open("/dev/full", "w"))  # noqa: SIM115  closing it would fail, as writing does
        assert main(words) == 2
    assert capsys.readouterr().err == "limpid: error: the system refuses: No space left on device\n"


def test_an_error_that_nothing_takes_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115  closing it would fail, as writing does
    monkeypatch.setattr(sys, "stderr", full)
    assert main(["generate", "nowhere", "a"]) == 2
