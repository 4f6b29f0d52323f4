"""Examples of whole data sets: made, kept, found again, counted."""

import io
import json
import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data.reading import refusal
from data.tuning.templates import CHATML, talk
from generation.hugging_face_chat import chat_folder
from limpid.config import DataConfig
from limpid.data import columns
from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer
from limpid.data.tokenizer_folder import load_tokenizer
from limpid.data.tuning import examples as module
from limpid.data.tuning.examples import Examples, Wanted, open_examples, prepare_examples
from limpid.data.tuning.shapes import Kind
from limpid.errors import CheckpointError, ConfigError, DataError
from limpid.source import ModelFolder

CONTEXT = 60


def written(file: Path, *records: Any) -> DataConfig:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return DataConfig(paths=(str(file),))


def answers(count: int) -> list[dict[str, Any]]:
    return [{"messages": talk(f"q{number}", "a" * (1 + number % 7))} for number in range(count)]


def prepared(data: DataConfig, kind: Kind = "answers", **options: Any) -> Examples:
    return prepare_examples(Wanted(data, kind, CHATML.tokenizer(), CONTEXT, 0, **options))


def test_every_record_is_in_one_split_with_its_place(tmp_path: Path) -> None:
    examples = prepared(written(tmp_path / "x.jsonl", *answers(40)))
    train, held_out = examples.train, examples.validation
    assert train.records + held_out.records == 40
    assert held_out.records > 0
    assert sorted([*train.where, *held_out.where]) == sorted(f"{tmp_path / 'x.jsonl'}:{n}" for n in range(1, 41))
    number = int(train.where[3].rpartition(":")[2]) - 1
    answer = train.answer(3)
    text = examples.tokenizer.decode(answer.tokens[answer.learned])
    assert text == answers(40)[number]["messages"][1]["content"] + "<|im_end|>"


def test_a_resume_finds_the_same_or_says_that_the_data_changed(tmp_path: Path, cache: Path) -> None:
    data = written(tmp_path / "x.jsonl", *answers(20))
    examples = prepared(data)
    again = open_examples(
        examples.fingerprint, Wanted(data, "answers", byte_tokenizer(), CONTEXT, 0)
    )  # from the cache, whatever the arguments
    assert np.array_equal(again.train.tokens, examples.train.tokens)
    assert again.tokenizer.chat_template == examples.tokenizer.chat_template
    assert again.tallies == examples.tallies

    for kept in (cache / "tokens").iterdir():
        (kept / "train-tokens.bin").write_bytes(b"")
    again = prepared(data)
    assert again.fingerprint == examples.fingerprint
    assert any("not whole" in note for note in again.notes)

    written(tmp_path / "x.jsonl", *answers(21))
    for kept in (cache / "tokens").iterdir():
        (kept / "train-tokens.bin").unlink()
    with pytest.raises(CheckpointError, match="data has changed"):
        open_examples(examples.fingerprint, Wanted(data, "answers", CHATML.tokenizer(), CONTEXT, 0))


def test_the_fingerprint_follows_all_that_examples_depend_on(tmp_path: Path) -> None:
    data = written(tmp_path / "x.jsonl", *answers(9))
    (tmp_path / "other.jinja").write_text(CHATML.template.replace("assistant", "model"))
    fingerprints = {
        prepared(data).fingerprint,
        prepared(data, too_long="skip").fingerprint,
        prepared(data, skip_bad_rows=True).fingerprint,
        prepared(data, chat_template=str(tmp_path / "other.jinja")).fingerprint,
        prepared(data, "prompts").fingerprint,
        prepare_examples(Wanted(data, "answers", byte_tokenizer(), CONTEXT, 0)).fingerprint,
        prepare_examples(Wanted(data, "answers", CHATML.tokenizer(), CONTEXT, 1)).fingerprint,
        prepare_examples(Wanted(data, "answers", CHATML.tokenizer(), CONTEXT + 1, 0)).fingerprint,
        prepared(written(tmp_path / "y.jsonl", *answers(10))).fingerprint,
    }
    assert len(fingerprints) == 9
    (tmp_path / "z.jsonl").write_bytes((tmp_path / "x.jsonl").read_bytes())
    moved = prepared(DataConfig(paths=(str(tmp_path / "z.jsonl"),)))
    assert moved.fingerprint in fingerprints
    assert moved.train.where[0].startswith(str(tmp_path / "z.jsonl"))


@pytest.mark.parametrize("too_long", ["cut", "skip", "refuse"])
def test_what_does_not_fit_is_cut_skipped_or_refused_and_counted(too_long: Any, tmp_path: Path) -> None:
    long_answer, long_prompt = {"messages": talk("q", "b" * 99)}, {"messages": talk("q" * 99, "b")}
    data = written(tmp_path / "x.jsonl", *answers(20), long_answer, long_prompt)
    if too_long == "refuse":
        said = refusal(lambda: prepared(data, too_long=too_long))
        assert "x.jsonl:21 has" in said
        assert said.endswith(f"tokens, and {CONTEXT + 1} fit: shorten it")
        return
    examples = prepared(data, too_long=too_long)
    taken, cut = (sum(getattr(tally, what) for tally in examples.tallies) for what in ("records", "cut"))
    longest = max(tally.longest for tally in examples.tallies)
    if too_long == "cut":
        assert (taken, cut, examples.skipped, longest) == (21, 1, {"answer beyond the context": 1}, CONTEXT + 1)
    else:
        assert (taken, cut, examples.skipped) == (20, 0, {"longer than the context": 2})


def test_bad_rows_are_refused_with_the_first_or_counted(tmp_path: Path) -> None:
    data = written(tmp_path / "x.jsonl", *answers(9), {"messages": talk("q")}, {"messages": talk("q", " ")}, 7)
    said = refusal(lambda: prepared(data))
    assert "x.jsonl:10" in said
    assert prepared(data, skip_bad_rows=True).skipped == {"no answer": 2, "no object": 1}


def test_validation_data_is_never_trained_on(tmp_path: Path) -> None:
    written(tmp_path / "x.jsonl", *answers(9))
    written(tmp_path / "v.jsonl", *answers(3))
    data = DataConfig(paths=(str(tmp_path / "x.jsonl"),), validation=(str(tmp_path / "v.jsonl"),))
    examples = prepared(data)
    assert [tally.records for tally in examples.tallies] == [6, 3]


def test_records_on_both_sides_are_counted(tmp_path: Path) -> None:
    examples = prepared(written(tmp_path / "x.jsonl", *answers(1) * 20))
    assert any(note.startswith("records that are trained on, and held out as well") for note in examples.notes)


def test_a_single_record_is_trained_on(tmp_path: Path) -> None:
    examples = prepared(written(tmp_path / "x.jsonl", *answers(1)))
    assert [tally.records for tally in examples.tallies] == [1, 0]
    assert examples.validation.records == 0


def test_prompts_keep_their_columns_and_judged_answers_their_labels(tmp_path: Path) -> None:
    records = [{"prompt": f"{n} + 1 =", "solution": n + 1} for n in range(9)]
    train = prepared(written(tmp_path / "x.jsonl", *records), "prompts").train
    for place, fields in zip(train.where, train.columns, strict=True):
        assert fields == {
            name: value for name, value in records[int(place.rpartition(":")[2]) - 1].items() if value is not None
        }

    judged = [{"prompt": "q", "completion": f" {n}", "label": n % 2 == 0} for n in range(9)]
    train = prepared(written(tmp_path / "y.jsonl", *judged), "judged").train
    lines = [int(place.rpartition(":")[2]) - 1 for place in train.where]
    assert train.desirable is not None
    assert train.desirable.tolist() == [judged[line]["label"] for line in lines]


def test_tables_and_columns_are_read_whole(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    records = [{"prompt": f"q{n}", "completion": f" a{n}", "extra": n} for n in range(6)]
    lines = ["prompt;completion;extra", *(f'"{one["prompt"]}";{one["completion"]};{one["extra"]}' for one in records)]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "x.parquet")
    (tmp_path / "x.json").write_text(json.dumps(records, indent=1))
    found = [prepared(DataConfig(paths=(str(tmp_path / name),))).train for name in ("x.csv", "x.parquet", "x.json")]
    for one in found[1:]:
        assert np.array_equal(one.tokens, found[0].tokens)


def test_a_folder_passes_over_what_holds_no_records(tmp_path: Path) -> None:
    written(tmp_path / "x.jsonl", *answers(9))
    (tmp_path / "README.md").write_text("about\n")
    examples = prepared(DataConfig(paths=(str(tmp_path),)))
    assert sum(tally.records for tally in examples.tallies) == 9
    assert any("README.md" in note for note in examples.notes)
    assert "is no file of records" in refusal(lambda: prepared(DataConfig(paths=(str(tmp_path / "README.md"),))))


def test_nothing_to_tune_on_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data to tune on"):
        prepared(DataConfig())
    with pytest.raises(DataError, match="weights are 1"):
        prepared(DataConfig(paths=("x",), weights=(1.0,)))
    with pytest.raises(DataError, match="several sets, a, one without a name"):
        prepared(DataConfig(paths=("x",), validation=("a=y", "z")))
    data = written(tmp_path / "x.jsonl", *({"messages": talk("q" * 99, "b")} for _ in range(3)))
    assert "no record is left to train on" in refusal(lambda: prepared(data))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "cannot be read"),
        (b"\xff", "is no text"),
        (None, "cannot read the chat template"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "writes nothing of an answer"),
        ("{% for m in messages %}{{ loop.length }}{{ m.content }}{% endfor %}", ""),
        ("{{ raise_exception('no') }}", "refuses these messages: no"),
    ],
)
def test_a_template_that_does_not_serve_is_said(template: str | bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    if template is not None:
        file.write_bytes(template if isinstance(template, bytes) else template.encode())
    data = written(tmp_path / "x.jsonl", *answers(3))
    if said:
        assert said in refusal(lambda: prepared(data, chat_template=str(file)))
    else:  # it writes each prompt otherwise once there is an answer to it
        assert any("whose prompt" in note for note in prepared(data, chat_template=str(file)).notes)


def test_a_folder_of_hugging_face_says_how_a_text_ends(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(ModelFolder(chat_folder(tmp_path / "model")))
    data = written(tmp_path / "x.jsonl", *({"prompt": "q", "completion": f"a{n}"} for n in range(9)))
    examples = prepare_examples(Wanted(data, "answers", tokenizer, CONTEXT, 0))
    assert examples.train.answer(0).tokens[-1] == tokenizer.special_id("<|im_end|>")  # its eos_token
    assert any("without the model's chat template" in note for note in examples.notes)


def test_a_template_that_writes_the_day_makes_other_examples_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%d') }}" + CHATML.template)
    data = written(tmp_path / "x.jsonl", *answers(3))
    today = prepared(data, chat_template=str(tmp_path / "dated.jinja"))
    assert any("today's date" in note for note in today.notes)
    monkeypatch.setattr(module, "date", SimpleNamespace(today=lambda: date(2001, 2, 3)))
    assert prepared(data, chat_template=str(tmp_path / "dated.jinja")).fingerprint != today.fingerprint


def test_records_of_the_hub_and_of_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    records = [{"prompt": f"q{n}", "completion": f" a{n}"} for n in range(6)]
    expected = prepared(written(tmp_path / "x.jsonl", *records)).train.tokens
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(records))
    columns._hub_dataset.cache_clear()
    from_hub = prepared(DataConfig(paths=("hf:some/records",))).train
    columns._hub_dataset.cache_clear()
    assert from_hub.where[0].startswith("hf:some/records:")
    stream = io.TextIOWrapper(io.BytesIO((tmp_path / "x.jsonl").read_bytes()))
    monkeypatch.setattr("sys.stdin", stream)
    piped = prepared(DataConfig(paths=("-",))).train
    for found in (from_hub, piped):
        assert np.array_equal(found.tokens, expected)


def test_a_prompt_is_not_cut_where_its_answer_begins(tmp_path: Path) -> None:
    data = written(tmp_path / "x.jsonl", {"prompt": "q" * 99}, *({"prompt": f"q{n}"} for n in range(9)))
    with pytest.raises(ConfigError, match="a prompt ends where its answer begins"):
        prepared(data, "prompts", too_long="cut")
    assert prepared(data, "prompts").skipped == {"longer than the context": 1}


def test_what_no_token_stands_for_is_said_or_counted(tmp_path: Path) -> None:
    records = [{"prompt": "ab", "completion": "ba"}, {"prompt": "ab", "completion": "c"}, {"text": "ab" * 9}]
    data, tokenizer = written(tmp_path / "x.jsonl", *records), character_tokenizer("ab")
    wanted = Wanted(data, "answers", tokenizer, CONTEXT, 0)
    assert "x.jsonl:2: character 'c'" in refusal(lambda: prepare_examples(wanted))
    assert prepare_examples(replace(wanted, skip_bad_rows=True)).skipped == {"cannot be tokenized": 1}


@pytest.mark.parametrize(("label", "said"), [(True, "only good answers"), (False, "only bad answers"), (None, None)])
def test_labels_of_one_kind_alone_are_noted(tmp_path: Path, label: bool | None, said: str | None) -> None:
    judged = [
        {"prompt": f"q{number}", "completion": "a", "label": number % 2 == 0 if label is None else label}
        for number in range(20)
    ]
    notes = [note for note in prepared(written(tmp_path / "x.jsonl", *judged), "judged").notes if "label" in note]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


def test_held_out_records_are_a_fair_share_of_every_file_in_either_order(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("x.jsonl", "y.jsonl")]
    for file in files:
        written(Path(file), *answers(200))
    for paths in (files, files[::-1]):
        where = prepared(DataConfig(paths=tuple(paths))).validation.where
        shares = [sum(place.startswith(file) for place in where) / 200 for file in files]
        assert shares == pytest.approx([0.1, 0.1], abs=3 * math.sqrt(0.1 * 0.9 / 200))
