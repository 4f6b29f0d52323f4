"""Generation from Python and from files: one answer whichever way it is asked for, in order, however many prompts."""

import itertools
import json
from pathlib import Path

import pytest

import limpid
from limpid.cli import main
from limpid.config import ModelConfig, Sampling
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.errors import ConfigError, DataError
from limpid.generation import complete
from limpid.generation.decode import AT_ONCE
from limpid.generation.prompt_file import read_prompts
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder
from limpid.terminal import printable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    config = ModelConfig(vocab_size=257, context_length=64, d_model=16, num_layers=1, num_heads=2, init_std=0.35)
    weights = initialise(Transformer(config), 0).state_dict()
    save_folder(path, config, weights, tokenizer_json=byte_tokenizer().to_json(), end_of_text=256)
    return path


def test_one_prompt_several_and_a_model_in_memory_give_the_same(folder: Path) -> None:
    alone = limpid.generate(folder, "ab", max_new_tokens=6)
    several = limpid.generate(limpid.load(folder), ["ab", "cd"], max_new_tokens=6)
    assert alone.text == alone[0].text == several.texts[0]
    assert [one.prompt for one in several] == ["ab", "cd"]
    assert len(repr(several)) < 200
    assert "<script" not in several._repr_html_()


def test_prompts_beyond_those_held_at_once_draw_as_if_they_were_not(folder: Path, monkeypatch) -> None:
    model, tokenizer = limpid.load(folder)
    prompts = [f"{number} " for number in range(9)]
    whole = list(complete(model, tokenizer, prompts, Sampling(5, seed=2)))
    monkeypatch.setattr("limpid.generation.decode.AT_ONCE", 2)
    assert list(complete(model, tokenizer, prompts, Sampling(5, seed=2))) == whole


def test_prompts_are_read_as_they_are_needed(folder: Path) -> None:
    taken = 0

    def endless():
        nonlocal taken
        for number in itertools.count():
            taken += 1
            yield str(number)

    model, tokenizer = limpid.load(folder)
    made = complete(model, tokenizer, endless(), Sampling(1))
    assert [next(made).prompt for _ in range(3)] == ["0", "1", "2"]
    assert taken == AT_ONCE


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", 'one\n\n {"text": 1}\r\nthree', ["one", ' {"text": 1}', "three"]),
        ("a.jsonl", '{"text": "x\\ny"}\n{"prompt": "p", "text": "t"}\n', ["x\ny", "p"]),
        ("a", '{"messages": [{"role": "user", "content": "q"}]}\n', [[{"role": "user", "content": "q"}]]),
        ("a", '{"conversations": [{"from": "human", "value": "q"}]}', [[{"role": "user", "content": "q"}]]),
    ],
)
def test_files_of_prompts(name: str, content: str, expected: list, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert list(read_prompts(str(tmp_path / name))) == expected


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"txt": 1}\n', "a.jsonl, line 2 .*: expected a JSON object with one of"),
        ("a.jsonl", b"[1]", "line 1 is .*expected a JSON object"),
        ("a.jsonl", b'{"prompt": 3}', "prompt is 3: expected text"),
        ("a.jsonl", b'{"messages": [{"role": 1}]}', "line 1: .*is no message"),
        (
            "a.jsonl",
            b'{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}',
            "line 1 ends with an answer of the assistant",
        ),
        ("a.txt", b"a\n\xff\n", "line 2 is not UTF-8"),
        ("a.txt", b"\n \n", "a.txt holds no prompt"),
        ("empty", b"", "empty holds no prompt"),
        ("nothing", None, "cannot read .*No such file"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        list(read_prompts(str(tmp_path / name)))


def test_a_file_of_prompts_becomes_json_lines_in_its_order(folder: Path, tmp_path: Path, capsys) -> None:
    prompts = [f"{number}" * (1 + number % 5) for number in range(40)]
    (tmp_path / "p.txt").write_text("\n".join(prompts))
    words = ["generate", str(folder), "--prompts", str(tmp_path / "p.txt"), "-n", "4", "--seed", "1"]
    assert main([*words, "-o", str(tmp_path / "out.jsonl")]) == 0
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert capsys.readouterr().out == ""
    assert written == limpid.generate(folder, prompts, max_new_tokens=4, seed=1).document()
    assert main([*words, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == written
    assert main([*words, "-o", str(tmp_path / "out.jsonl")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words, "and a prompt"]) == 2


def test_continuations_of_several_prompts_are_told_apart(folder: Path, capsys) -> None:
    assert main(["generate", str(folder), "a\n\nb", "cd", "-n", "3"]) == 0
    shown = capsys.readouterr().out
    texts = limpid.generate(folder, ["a\n\nb", "cd"], max_new_tokens=3).texts
    assert shown == printable(f"== 1 of 2 ==\na\n\nb{texts[0]}\n\n== 2 of 2 ==\ncd{texts[1]}\n\n")


@pytest.mark.parametrize("prompts", [[], [3], ["a", 3], [[]], {"role": "user"}])
def test_what_is_no_prompt_is_refused_by_name(prompts: object) -> None:
    with pytest.raises((ConfigError, DataError), match="prompts"):
        limpid.generate("nowhere", prompts)
