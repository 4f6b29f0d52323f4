"""A recorded step in the page: numbers are those of the trace, to the last digit."""

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save_file
from starlette.testclient import TestClient
from tests.view.folders import made_run
from tests.view.test_runs import fits

from limpid.reporter import SILENT
from limpid.tracing import Trace, worked
from limpid.tracing.schema import to_json
from limpid.view import worker
from limpid.view.kept import Kept
from limpid.view.safety import LARGEST_BODY

Ask = Callable[..., TestClient]
SCORES = "blocks.0.attention.scores"


@pytest.fixture(scope="session")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run, whose first step is that of the worked model, its document made."""
    folder = tmp_path_factory.mktemp("viewed")
    run = made_run(folder, "001", 1)
    run.recorded_step(1).parent.mkdir()
    worked.record(run.recorded_step(1))
    worker.record({"run": str(run.path), "step": 1}, SILENT.progress)
    return folder


@pytest.fixture
def client(viewed: Path, ask: Ask) -> TestClient:
    return ask(viewed)


@pytest.fixture(scope="session")
def trace(viewed: Path) -> Trace:
    return Trace.open(viewed / "001/steps/000001.safetensors")


def arrays(client: TestClient, query: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of an answer, and what its header says of them."""
    answer = client.get(f"/api/runs/001/steps/1/{query}")
    assert answer.status_code == 200, answer.text
    size = int.from_bytes(answer.content[:8], "little")
    assert size % 8 == 0
    return load(answer.content), json.loads(answer.content[8 : 8 + size])["__metadata__"]


def test_the_document_is_that_of_the_trace(client: TestClient, trace: Trace) -> None:
    answer = client.get("/api/runs/001/steps/1")
    view = answer.json()
    fits(view, "StepView")
    assert view["step"] == to_json(trace.step)
    assert view["tokens"] == [["<BOS>", "I", "like", "transformers"]]
    equations = {one for quantity in view["step"]["quantities"] for one in (quantity["equation"], *quantity["adjoint"])}
    assert equations - {""} <= set(view["mathml"])
    assert "exact" in view["arrays"][SCORES]["kinds"]
    assert view["arrays"]["update(logits.weight)"]["shape"] == view["arrays"]["logits.weight"]["shape"]
    again = client.get("/api/runs/001/steps/1", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("name", "index", "kind"),
    [
        (SCORES, "", "value"),
        (SCORES, "[0, 1, 2]", "value"),
        (SCORES, "[0, 1, 1:3, :2]", "gradient"),
        ("logits", "[0]", "gradient"),
        ("tokens", "", "value"),
        ("logits.weight", "[3, 5]", "value"),
        ("m(logits.weight)", "[3]", "value"),
        ("grad(logits.weight)", "[1:2]", "value"),
        ("loss", "", "value"),
    ],
)
def test_slices_are_the_numbers_of_the_trace(
    client: TestClient, trace: Trace, name: str, index: str, kind: str
) -> None:
    tensors, about = arrays(client, f"slice?entry={name}{index}&kind={kind}")
    whole = trace.array(f"grad({name})" if kind == "gradient" else name)
    expected = eval(f"whole{index or '[...]'}", {"whole": whole})
    np.testing.assert_array_equal(tensors["data"], expected)
    assert json.loads(about["shape"]) == list(whole.shape)
    assert ("hidden" in tensors) == (name == SCORES)
    if name == SCORES and not index:
        assert tensors["hidden"][0, 0].tolist() == np.triu(np.ones((4, 4)), 1).tolist()


@pytest.mark.parametrize(
    "name",
    [SCORES, "loss", f"grad({SCORES})", "grad(embed.tokens.weight)", "update(logits.weight)", "v(logits.weight)"],
)
def test_differences_are_those_that_the_verdict_is_of(client: TestClient, trace: Trace, name: str) -> None:
    """The largest share of its bound that the page paints is the one of the check."""
    exact, difference, share = (arrays(client, f"slice?entry={name}&kind={kind}")[0]["data"]
                                for kind in ("exact", "difference", "share"))  # fmt: skip
    engine = trace.array(name)
    np.testing.assert_array_equal(engine - exact, difference)
    assert np.nanmax(share) <= 1
    quantity = next((one for one in trace.step.quantities if one.name == name), None)
    if quantity is not None and not quantity.forward.over:
        assert np.nanmax(share) == pytest.approx(quantity.forward.worst)


def test_one_entry_is_explained(client: TestClient, trace: Trace) -> None:
    view = client.get(f"/api/runs/001/steps/1/explain?entry={SCORES}[0,1,2,1]").json()
    fits(view, "EntryView")
    assert view["entry"] == to_json(trace.explain(SCORES, (0, 1, 2, 1)))
    assert view["mathml"][view["entry"]["made"]["equation"]].startswith("<math")


def test_heads_and_features_run_along_in_tiles_as_they_do_whole(client: TestClient) -> None:
    name = "blocks.0.attention.query"
    whole, _ = arrays(client, f"slice?entry={name}[0]")
    tile, _ = arrays(client, f"tiles?name={name}&index=0")
    assert whole["data"].ndim == 3
    np.testing.assert_array_equal(tile["max"], whole["data"].reshape(len(whole["data"]), -1).astype(np.float32))


def test_one_entry_that_is_not_a_number_is_seen_in_every_tile_over_it(
    viewed: Path, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs"
    monkeypatch.setattr("limpid.view.arrays.WORTH_KEEPING", 1 << 20)
    shutil.copytree(viewed, folder)
    file = folder / "001/steps/000001.safetensors"
    with safe_open(file, "numpy") as held:
        tensors, meta = {name: held.get_tensor(name) for name in held.keys()}, held.metadata()  # noqa: SIM118
    rows, columns = 1100, 1000
    matrix = np.random.default_rng(0).standard_normal((rows, columns))
    matrix[777, 555], matrix[3, 999] = np.nan, 1e6
    save_file(tensors | {"before/logits.weight": matrix}, file, meta)
    client = ask(folder)
    first, about = arrays(client, "tiles?name=logits.weight&level=4")
    assert about["levels"] == "5"
    assert (about["not_finite"], float(about["max"])) == ("1", 1e6) or about["not_finite"] == "1.0"
    assert first["min"].shape == (69, 63)
    for level in range(5):
        edge = 2**level
        row, column = 777 // edge, 555 // edge
        tile, _ = arrays(client, f"tiles?name=logits.weight&level={level}&row={row // 128}&column={column // 128}")
        assert tile["not_finite"][row % 128, column % 128] == 1
        part = matrix[row * edge : (row + 1) * edge, column * edge : (column + 1) * edge]
        finite = part[np.isfinite(part)]
        if len(finite):
            assert tile["min"][row % 128, column % 128] == np.float32(finite.min())
            assert tile["rms"][row % 128, column % 128] == pytest.approx(np.sqrt((finite**2).mean()), rel=1e-6)
            assert tile["mean"][row % 128, column % 128] == pytest.approx(finite.mean(), rel=1e-6, abs=1e-6)
        row, column = 3 // edge, 999 // edge
        tile, _ = arrays(client, f"tiles?name=logits.weight&level={level}&row={row // 128}&column={column // 128}")
        assert tile["max"][row % 128, column % 128] == 1e6
    assert len(list((folder / "001/steps/000001.view").glob("*.tiles"))) == 1
    again, _ = arrays(client, "tiles?name=logits.weight&level=4")
    np.testing.assert_array_equal(again["max"], first["max"])


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("slice?entry=nothing", 400),
        (f"slice?entry={SCORES}[9]", 400),
        (f"slice?entry={SCORES}[99999999999999999999999]", 400),
        (f"slice?entry={SCORES}[0:99999999999]", 400),
        (f"slice?entry={SCORES}[3:1]", 400),
        (f"slice?entry={SCORES}[0,0,0,0,0]", 400),
        (f"slice?entry={SCORES}[-1]", 400),
        (f"slice?entry={SCORES}[__import__('os')]", 400),
        (f"slice?entry={SCORES}&kind=whole", 400),
        ("slice", 400),
        ("slice?entry=" + "x" * 600, 400),
        ("slice?entry=../../etc/passwd", 400),
        ("slice?entry=tokens&kind=exact", 404),
        (f"tiles?name={SCORES}&index=0,0,0", 400),
        (f"tiles?name={SCORES}&index=0,0&level=1", 400),
        (f"tiles?name={SCORES}&index=0,0&row=1", 400),
        (f"tiles?name={SCORES}&index=0,0&level=99999999999", 400),
        (f"tiles?name={SCORES}&index=0,0&level=x", 400),
        ("explain?entry=nothing", 400),
        ("explain", 400),
        (f"explain?entry={SCORES}[9,9,9,9]", 400),
    ],
)
def test_questions_that_make_no_sense_are_answered_in_one_line(client: TestClient, query: str, status: int) -> None:
    answer = client.get(f"/api/runs/001/steps/1/{query}")
    assert answer.status_code == status
    fits(answer.json(), "ErrorDocument")
    assert "\n" not in answer.json()["error"]


def test_what_has_to_be_made_first_is_named(viewed: Path, ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(viewed, folder)
    shutil.rmtree(folder / "001/steps/000001.view")
    client = ask(folder)
    assert client.get("/api/runs/001/steps/1").json()["missing"] == "document"
    assert client.get("/api/runs/001/steps/2").json()["missing"] == "record"
    answer = client.post("/api/runs/001/steps/2/record", json={})
    assert answer.status_code == 404
    assert "no checkpoint" in answer.json()["error"]
    for step in ("0x1", "-1", "1" * 40, "१"):
        assert client.get(f"/api/runs/001/steps/{step}").status_code == 404


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "pickle"])
def test_a_step_that_is_half_written_is_an_error_of_one_line(
    viewed: Path, ask: Ask, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(viewed, folder)
    file = folder / "001/steps/000001.safetensors"
    whole = file.read_bytes()
    pickled = b"cos\nsystem\n(S'touch pwned'\ntR."
    file.write_bytes(
        {"cut": whole[: len(whole) // 2], "empty": b"", "foreign": b"\xff" * 100, "pickle": pickled}[damage]
    )
    client = ask(folder)
    for query in ("", "/slice?entry=logits", "/tiles?name=loss", "/explain?entry=loss"):
        answer = client.get(f"/api/runs/001/steps/1{query}")
        assert answer.status_code in (400, 404), (query, answer.text)
        assert answer.json()["error"]


def test_a_step_that_leads_out_of_the_folder_is_not_read(viewed: Path, ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    run = made_run(folder, "001", 1)
    run.recorded_step(1).parent.mkdir()
    run.recorded_step(1).symlink_to(viewed / "001/steps/000001.safetensors")
    answer = ask(folder).get("/api/runs/001/steps/1/slice?entry=loss")
    assert answer.status_code == 404
    assert "leads out" in answer.json()["error"]


def test_what_was_kept_of_a_step_that_is_another_by_now_is_removed(viewed: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(viewed / "001/steps/000001.safetensors", tmp_path / "000001.safetensors"))
    kept = Kept(file)
    kept.write(kept.file("a", "tiles"), b"content")
    (kept.folder / "notes.txt").write_text("somebody's own")
    worked.record(file)
    assert kept.mapped(kept.file("a", "tiles")) is None
    assert kept.made("b", "json.gz", lambda: b"new") == b"new"
    assert bytes(kept.made_mapped("c", "tiles", lambda: b"made")) == b"made"
    assert bytes(kept.made_mapped("c", "tiles", lambda: b"again")) == b"made"
    assert {one.name for one in kept.folder.iterdir()} == {
        "key", "notes.txt", kept.file("b", "json.gz").name, kept.file("c", "tiles").name,
    }  # fmt: skip


def test_many_that_ask_at_once_have_it_made_once(viewed: Path, tmp_path: Path) -> None:
    kept = Kept(Path(shutil.copy(viewed / "001/steps/000001.safetensors", tmp_path / "000001.safetensors")))
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.1)
        return b"tiles"

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: bytes(kept.made_mapped("a", "tiles", make)), range(8)))
    assert found == [b"tiles"] * 8
    assert made == [1]


def test_what_was_kept_of_another_step_or_program_is_not_used(viewed: Path, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    file = shutil.copy(viewed / "001/steps/000001.safetensors", tmp_path / "000001.safetensors")
    kept = Kept(Path(file))
    kept.write(kept.file("a", "b"), b"content")
    kept.write_arrays("x", np.ones((2, 3)), np.zeros((2, 3)))
    assert kept.read(kept.file("a", "b")) == b"content"
    found = kept.arrays("x")
    assert found is not None
    np.testing.assert_array_equal(found["exact"], np.ones((2, 3)))
    np.testing.assert_array_equal(found["bound"], np.zeros((2, 3)))
    monkeypatch.setattr("limpid.view.kept.program", lambda: "another")
    assert kept.read(kept.file("a", "b")) is None
    assert kept.arrays("x") is None


def test_bodies_are_json_objects(client: TestClient) -> None:
    for content, kind, status in (
        (b"{}", "text/plain", 415), (b"[", "application/json", 400), (b"[]", "application/json", 400),
        (b"[" * 100_000, "application/json", 400), (b"{}", "application/json", 400),
        (b"x" * (LARGEST_BODY + 1), "application/json", 413),
    ):  # fmt: skip
        answer = client.post("/api/runs/001/steps/1/exact", content=content, headers={"Content-Type": kind})
        assert answer.status_code == status


def test_equations_are_sent_once(client: TestClient) -> None:
    answer = client.get("/api/equations")
    fits(answer.json(), "EquationsView")
    again = client.get("/api/equations", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
