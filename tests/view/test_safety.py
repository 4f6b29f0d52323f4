"""Who is answered, and what nobody can reach."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn
from starlette.testclient import TestClient
from tests.view.folders import made_run

from limpid.errors import CheckpointError, ConfigError
from limpid.lock import hold, release
from limpid.run import RUNS
from limpid.view import live, prompt
from limpid.view.safety import LARGEST_BODY, Bucket
from limpid.view.server import application
from limpid.view.serving import Served, folder_of, listen

Ask = Callable[..., TestClient]
TOKEN = "a-token-that-nobody-guesses"


def test_only_scripts_and_styles_of_the_page_are_sent(tmp_path: Path, ask: Ask, bundle: None) -> None:
    client = ask(tmp_path)
    sent = client.get("/static/limpid.js")
    assert (sent.status_code, sent.headers["content-type"].partition(";")[0]) == (200, "text/javascript")
    for name in (".lock", "none.js", "..%2fserver.py", "%2e%2e%2fbundle.py", "../bundle.py"):
        assert client.get(f"/static/{name}").status_code == 404, name


def test_every_answer_says_what_the_page_may_do(tmp_path: Path, ask: Ask) -> None:
    client = ask(tmp_path)
    for path in ("/", "/limpid.js", "/api/runs", "/api/nothing", "/api/runs/none"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "cache-control" in headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example:8000", "", "0.0.0.0"])
def test_a_name_that_was_rebound_to_this_machine_is_refused(tmp_path: Path, ask: Ask, host: str) -> None:
    made_run(tmp_path, "001", 1)
    answer = ask(tmp_path).get("/api/runs", headers={"Host": host})
    assert answer.status_code == 403
    assert "001" not in answer.text


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:8000", "LOCALHOST:1"])
def test_this_machine_may_ask_under_its_names(tmp_path: Path, ask: Ask, host: str) -> None:
    assert ask(tmp_path).get("/api/runs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8001"},
        {"Origin": "http://localhost:8000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_another_page_is_refused(tmp_path: Path, ask: Ask, headers: dict[str, str]) -> None:
    assert ask(tmp_path).get("/api/runs", headers=headers).status_code == 403


def test_the_own_page_may_ask_and_a_link_may_lead_to_it(tmp_path: Path, ask: Ask) -> None:
    client = ask(tmp_path)
    own = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    assert client.get("/api/runs", headers=own).status_code == 200
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status_code != 403
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).status_code == 403


@pytest.mark.parametrize(
    "name",
    [
        "..", ".", "../002", "..%2f..%2fetc", "%2e%2e", "/etc", "a/b", "a\\b", ".hidden", "", "x" * 5000, "%00",
        "outside", "001%00", "%2fetc%2fpasswd", "～",
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(tmp_path: Path, ask: Ask, name: str) -> None:
    made_run(tmp_path, "002", losses=[4242.0])
    folder = tmp_path / "runs"
    made_run(folder, "001", 1)
    (folder / "outside").symlink_to(tmp_path / "002")
    client = ask(folder)
    for path in (f"/api/runs/{name}", f"/api/runs/{name}/metrics?columns=loss", f"/api/runs/{name}/events"):
        answer = client.get(path)
        assert answer.status_code in (307, 400, 404) or answer.url.path.rstrip("/") in ("/api/runs", "/api"), path
        assert "4242" not in answer.text
    assert [row["name"] for row in client.get("/api/runs").json()["runs"]] == ["001"]


@pytest.mark.parametrize("file", ["metrics.jsonl", "samples.jsonl", "findings.jsonl"])
def test_no_file_of_a_run_leads_out_of_the_folder(tmp_path: Path, ask: Ask, file: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1, "loss": 4242.0, "prompt": "4242", "text": "4242"}\n')
    folder = tmp_path / "runs"
    run = made_run(folder, "001")
    (run.path / file).unlink(missing_ok=True)
    (run.path / file).symlink_to(secret)
    client = ask(folder)
    for path in (
        "/api/runs",
        "/api/runs/001",
        "/api/runs/001/metrics?columns=loss",
        "/api/runs/001/events?after=0-0-0",
    ):
        answer = client.get(path)
        assert "4242" not in answer.text
        assert "leads out" in answer.text


@pytest.mark.parametrize("name", ["metrics.jsonl", "findings.jsonl", "samples.jsonl", "labels.json"])
def test_what_would_wait_for_a_writer_is_not_read(tmp_path: Path, ask: Ask, name: str) -> None:
    made_run(tmp_path, "001", 1)
    run = made_run(tmp_path, "002")
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    client = ask(tmp_path)
    rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
    assert rows["001"]["state"] == "stopped"
    assert "no file" in rows["002"]["why"]
    assert "no file" in client.get("/api/runs/002").json()["error"]


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server as it runs, of two runs that train."""
    monkeypatch.setattr(prompt, "PATIENCE", 0.5)
    monkeypatch.setattr(live, "MOST", 1)
    folder = tmp_path / "runs"
    run = made_run(folder, "001", 3)
    hold(run.path)
    with listen("127.0.0.1", 0, 8000) as own:
        config = uvicorn.Config(application(folder), http=prompt.Prompt, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        serving = threading.Thread(target=server.run, args=([own],))
        serving.start()
        yield own.getsockname()[1]
        server.force_exit = server.should_exit = True
        serving.join(20)
    release(run.path)


def test_who_says_nothing_or_half_a_question_is_hung_up_on(real: int) -> None:
    asked = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for half in (b"", b"GET /api/ru", asked + b"GET /"):
        with socket.create_connection(("127.0.0.1", real), 20) as client:
            client.sendall(half)
            heard = b""
            while part := client.recv(1 << 16):  # until the server closes it
                heard += part
            assert (b" 200 " in heard) == half.startswith(asked)


def test_a_body_without_an_end_is_cut_off(real: int) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(2 * LARGEST_BODY // (1 << 16)):
            yield b"x" * (1 << 16)

    address, kind = f"http://127.0.0.1:{real}", {"Content-Type": "application/json"}
    with contextlib.suppress(httpx2.TransportError):  # it may hang up before all is sent
        assert httpx2.post(f"{address}/api/plan", content=endless(), headers=kind).status_code == 413
    assert httpx2.get(f"{address}/api/runs").status_code == 200


def test_pages_that_are_told_leave_connections_to_others(real: int) -> None:
    events = f"http://127.0.0.1:{real}/api/runs/001/events?after=0-0-0"
    with httpx2.stream("GET", events, timeout=20) as first:
        told = first.iter_bytes()
        assert next(told)
        refused = httpx2.get(events)
        assert (refused.status_code, "close some" in refused.json()["error"]) == (503, True)
        assert httpx2.get(f"http://127.0.0.1:{real}/api/runs/001").status_code == 200
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with httpx2.stream("GET", events, timeout=20) as again:
            if again.status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError("the first page is gone, and its place is not free")


def test_answers_are_not_held_back_for_an_acknowledgement(real: int) -> None:
    """40 ms each, where the kernel waits with the body until the other side has confirmed the head."""
    taken = []
    with httpx2.Client(base_url=f"http://127.0.0.1:{real}") as client:
        for _ in range(30):
            began = time.perf_counter()
            client.get("/api/nothing")
            taken.append(time.perf_counter() - began)
    assert min(taken) < 0.03


def test_a_token_is_shown_once_in_the_address_and_then_in_a_cookie(tmp_path: Path, ask: Ask) -> None:
    client = ask(tmp_path, TOKEN, "box.example:8000")
    assert client.get("/api/runs").status_code == 401
    assert client.get("/").status_code == 401
    assert client.get(f"/?token={TOKEN}x").status_code == 401
    assert client.get(f"/api/runs?token={TOKEN}").status_code == 401  # where it would stay in logs
    shown = client.get(f"/?token={TOKEN}")
    assert (shown.status_code, shown.headers["location"]) == (303, "/")
    cookie = shown.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/api/runs").status_code == 200  # the client keeps cookies
    neighbour = ask(tmp_path, TOKEN[::-1], "box.example:8001")
    assert neighbour.get(f"/?token={TOKEN[::-1]}").headers["set-cookie"].split("=")[0] != cookie.split("=")[0]
    other = ask(tmp_path, TOKEN, "box.example:8000")
    assert other.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert other.get("/api/runs", headers={"Authorization": "Bearer "}).status_code == 401
    assert other.get("/api/runs", headers={"Cookie": "limpid-token="}).status_code == 401


def test_questions_are_short_and_few(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ask(tmp_path)
    assert client.post("/api/runs", content=b"x" * (LARGEST_BODY + 1)).status_code == 413
    assert client.put("/api/runs").status_code == 405
    assert client.get("/api/nothing").status_code == 404
    monkeypatch.setattr(Bucket, "takes", lambda self: False)
    assert client.get("/api/nothing").status_code == 429
    assert client.get("/api/nothing", headers={"Host": "evil.example"}).status_code == 403  # it uses nothing up


def test_a_bucket_fills_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("limpid.view.safety.time.monotonic", lambda: now)
    bucket = Bucket(rate=2.0, burst=3.0, left=3.0, at=0.0)
    assert [bucket.takes() for _ in range(4)] == [True, True, True, False]
    now = 1.0
    assert [bucket.takes() for _ in range(3)] == [True, True, False]


def test_loopback_asks_for_no_token_and_every_other_address_does(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0, 8000) as own:
        assert Served(tmp_path, own, "127.0.0.1").address("001").endswith("/#/001")
        assert Served(tmp_path, own, "127.0.0.1").token is None
        drawn = Served(tmp_path, own, "0.0.0.0")
        assert f"?token={drawn.token}#/" in drawn.address()
        assert len(drawn.token or "") >= 32
        with pytest.raises(ConfigError, match="too easy"):
            Served(tmp_path, own, "0.0.0.0", "guess").address()


def test_a_taken_port_is_passed_over_or_named() -> None:
    with listen("127.0.0.1", 0, 8000) as first:
        port = first.getsockname()[1]
        with listen("127.0.0.1", None, port) as second:
            assert second.getsockname()[1] > port
        with pytest.raises(ConfigError, match=f"port {port}"):
            listen("127.0.0.1", port, 8000)
    with pytest.raises(ConfigError, match="no address of this machine"):
        listen("no.such.host.invalid", 0, 8000)
    assert socket.has_ipv6 is not None


def test_a_run_is_shown_in_its_folder(tmp_path: Path) -> None:
    run = made_run(tmp_path, "001", 1)
    assert folder_of(run.path) == (tmp_path, "001")
    assert folder_of(tmp_path) == (tmp_path, "")


def test_without_any_run_the_page_is_served_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_of(RUNS) == (RUNS, "")
    with pytest.raises(CheckpointError, match="elsewhere is no folder of runs"):
        folder_of(Path("elsewhere"))
