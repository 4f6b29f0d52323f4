"""A step as an object: computed once, read in parts, typed, and the same on the disk as in memory."""

import json

import numpy as np
import pytest
from recorded import configuration, record

import limpid.tracing.trace
from limpid.errors import ConfigError
from limpid.quantities import quantities
from limpid.tracing import Trace, show_step
from limpid.tracing.document import ArrayDocument, EntryDocument, StepDocument
from limpid.tracing.schema import FILE, from_json, json_schema, to_json, written
from limpid.tracing.stations import stages, station


@pytest.fixture
def path(tmp_path):
    return record(tmp_path, configuration("llama", "bf16", accumulation=2))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every verification from now on."""
    calls: list[object] = []
    original = limpid.tracing.trace.verify_record

    def verify_record(record, report):
        calls.append(record)
        return original(record, report)

    monkeypatch.setattr(limpid.tracing.trace, "verify_record", verify_record)
    return calls


def test_nothing_is_computed_before_it_is_asked_for_and_nothing_twice(path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    trace = Trace.open(path)
    trace.array("logits", (0, 1))
    trace.explain("blocks.0.attention.scores", (0, 1, 5, 3))
    assert calls == []
    assert trace.step is trace.step
    assert len(calls) == 1
    assert Trace.open(path).step == trace.step
    assert len(calls) == 1, "the document on the disk was not used"
    assert Trace.open(path, on_disk=False).step == trace.step
    assert len(calls) == 2


def test_a_document_on_the_disk_holds_for_its_record_and_its_program_only(
    path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    Trace.open(path).document()
    kept = path.with_suffix(".trace.json")
    with monkeypatch.context() as other:
        other.setattr("limpid.tracing.cache.program", lambda: "another")
        Trace.open(path).document()
        assert len(calls) == 2
    kept.write_text(kept.read_text(encoding="utf-8")[:-9], encoding="utf-8")  # cut short
    Trace.open(path).document()
    assert len(calls) == 3
    record(path.parent, configuration("llama", "bf16"), before=1)
    Trace.open(path).document()
    assert len(calls) == 4


def test_a_folder_that_cannot_be_written_to_keeps_no_document(path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_):
        raise PermissionError("read-only file system")

    with monkeypatch.context() as read_only:
        read_only.setattr("pathlib.Path.write_bytes", refused)
        assert Trace.open(path).step.verdict.agrees
    assert not path.with_suffix(".trace.json").exists()
    path.with_suffix(".trace.json").write_text("somebody's own notes")
    assert Trace.open(path).step.verdict.agrees
    assert path.with_suffix(".trace.json").read_text() == "somebody's own notes"


def test_arrays_are_read_in_parts(path) -> None:
    trace = Trace.open(path)
    whole = trace.record.exact("plain/blocks.1.attention.weights")
    assert np.array_equal(trace.array("blocks.1.attention.weights"), whole)
    assert np.array_equal(trace.array("blocks.1.attn.hook_pattern", (0, slice(1, 3), 4)), whole[0, 1:3, 4])
    assert trace.array("m(final_norm.weight)").shape == (12,)
    assert np.array_equal(trace.array("grad(logits)", (0,)), trace.record.exact("plain/grad(logits)")[0])
    with pytest.raises(ConfigError, match=r"has shape \(8, 11, 29\)"):
        trace.array("logits", (9, 0))
    with pytest.raises(ConfigError, match="did you mean"):
        trace.array("logit")


def test_a_document_survives_the_way_through_json(path) -> None:
    trace = Trace.open(path)
    for kind, document in (
        (StepDocument, trace.step),
        (EntryDocument, trace.explain("blocks.0.mlp.up.weight[3, 4]")),
        (ArrayDocument, trace.look("blocks.0.mlp.up.weight")),
    ):
        text = json.dumps(to_json(document), allow_nan=False)
        assert from_json(kind, json.loads(text)) == document


def test_the_schema_file_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == written(), "run python -m limpid.tracing"


def test_documents_are_as_the_schema_says(path) -> None:
    definitions = json_schema()["$defs"]
    trace = Trace.open(path)
    assert_fits(trace.document(), definitions["StepDocument"], definitions)
    assert_fits(to_json(trace.explain("logits")), definitions["EntryDocument"], definitions)
    assert_fits(to_json(trace.look("logits")), definitions["ArrayDocument"], definitions)


TYPES = {"string": str, "integer": int, "boolean": bool, "null": type(None), "number": (int, float),
         "object": dict, "array": list}  # fmt: skip


def assert_fits(value, schema, definitions) -> None:
    """The part of JSON Schema that the documents use."""
    if "$ref" in schema:
        return assert_fits(value, definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    if "anyOf" in schema:
        assert any(fits(value, one, definitions) for one in schema["anyOf"]), (value, schema)
        return None
    if "enum" in schema:
        assert value in schema["enum"]
        return None
    if "type" in schema:
        assert isinstance(value, TYPES[schema["type"]])
        assert schema["type"] == "boolean" or not isinstance(value, bool)
    if "properties" in schema:
        assert set(value) == set(schema["properties"]) == set(schema["required"])
        for name, own in schema["properties"].items():
            assert_fits(value[name], own, definitions)
    for place, own in enumerate(schema.get("prefixItems", ())):
        assert_fits(value[place], own, definitions)
    for one in value if "items" in schema else ():
        assert_fits(one, schema["items"], definitions)
    return None


def fits(value, schema, definitions) -> bool:
    try:
        assert_fits(value, schema, definitions)
    except (AssertionError, KeyError, TypeError):
        return False
    return True


def test_every_quantity_belongs_to_one_station(path) -> None:
    document = Trace.open(path).step
    names = [quantity.name for quantity in quantities(configuration("llama", "bf16").model)]
    forward = [one for one in document.stations if one.station not in ("backward", "update")]
    assert [name for one in forward for name in one.quantities] == names
    assert [one.title for one in document.stations] == [
        "embedding", "block 0 attention", "block 0 mlp", "block 1 attention", "block 1 mlp", "logits", "loss",
        "backward", "update",
    ]  # fmt: skip
    assert station("blocks.0.norm1") == station("final_norm") == "norm"
    assert stages(["blocks.3.norm2", "blocks.3.mlp.up"]) == [("mlp", 3, ["blocks.3.norm2", "blocks.3.mlp.up"])]
    learned = {parameter.name for parameter in document.parameters}
    assert {name for one in forward for name in one.parameters} == learned


def test_the_terminal_renders_a_document_from_the_disk_alone(path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from rich.console import Console

    assert show_step(path, console=Console(width=200)) == 0
    first = capsys.readouterr().out

    def never(_record):
        raise AssertionError("the step was redone")

    monkeypatch.setattr(limpid.tracing.trace, "verify_record", never)
    assert show_step(path, console=Console(width=200)) == 0
    assert capsys.readouterr().out == first


def test_redoing_a_step_says_how_far_it_is(path) -> None:
    heard: list[tuple[str, int, int | None]] = []
    step = Trace.open(path, on_disk=False, report=lambda *said: heard.append(said)).step
    assert [done for task, done, total in heard if total] == list(range(1, len(step.quantities) + 1))
    assert {total for _, _, total in heard} == {len(step.quantities), None}
