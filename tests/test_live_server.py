"""The live page's server and hostile neighbours: raw sockets, many connections, many saves, a full disk."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from small_models import loaded
from test_live import Client, question

import circuits
from circuits.live import Explorer, explorer
from circuits.live.door import MOST_WAITING, PATIENCE
from circuits.results import open_result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explored")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[Explorer]:
    with circuits.explore(loaded("planted-sparse"), folder=folder) as page:
        yield page


@pytest.fixture(scope="module")
def client(opened: Explorer) -> Client:
    return Client(opened.address)


@pytest.fixture(scope="module")
def answered(client: Client) -> str:
    """The job of a question that was answered."""
    job = client.post("ask", **question())["job"]
    assert [*client.events(job)][-1][0] == "done"
    return job


def connect(client: Client) -> socket.socket:
    host, _, port = client.host.partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def reply_to(client: Client, sent: bytes) -> str:
    """All that the server says to these bytes, until it closes or falls silent."""
    with connect(client) as line:
        line.sendall(sent)
        line.settimeout(2 * PATIENCE)
        said = b""
        while b"\r\n\r\n" not in said:
            part = line.recv(65536)
            if not part:
                break
            said += part
    return said.decode("latin-1")


# Requests without a path


TARGETS = [
    "OPTIONS *",
    "GET ?",
    "GET *",
    "HEAD ?a/b",
    "CONNECT {host}",
    "GET http://{host}",
    "POST *",
]


@pytest.mark.parametrize("target", TARGETS)
def test_a_request_without_a_path_is_refused_like_any_without_the_token(
    target: str, client: Client
) -> None:
    asked = target.format(host=client.host)
    for host in (client.host, "evil.example"):
        said = reply_to(client, f"{asked} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        status = int(said.split()[1])
        assert status in (404, 421), said


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: \xb2",
        "Content-Length: 99999999999999999999",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Host: {host}",
    ],
)
def test_no_header_makes_the_server_break_off(head: str, client: Client) -> None:
    path = urlsplit(client.address).path
    for place in (path, "/wrong/", "/"):
        given = f"GET {place} HTTP/1.1\r\nHost: {client.host}\r\n{head}\r\n\r\n"
        said = reply_to(client, given.replace("{host}", client.host).encode("latin-1"))
        assert not said or 200 <= int(said.split()[1]) < 500, said


# Half-open connections


def is_open(line: socket.socket) -> bool:
    """Whether the server still holds this connection, on which it has nothing to say."""
    line.setblocking(False)
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.long
def test_half_open_connections_keep_nobody_out_and_are_dropped_after_seconds(
    client: Client, answered: str
) -> None:
    path = urlsplit(client.address).path
    began = (b"", b"GET / HT", f"GET {path} HTTP/1.1\r\nHost: {client.host}\r\nX: ".encode())
    with ExitStack() as closing:
        lines = []
        for number in range(130):
            line = closing.enter_context(connect(client))
            line.sendall(began[number % len(began)])
            lines.append(line)
        since = time.monotonic()
        for _ in range(20):
            assert client.post("tokens", model="planted-sparse", prompt="large")["bos"] == 1
        assert client.hear("ask", **question())[-1][0] == "done"
        assert sum(map(is_open, lines)) <= MOST_WAITING
        while any(map(is_open, lines)):
            assert time.monotonic() - since < PATIENCE + 10
            time.sleep(0.1)


@pytest.mark.long
def test_a_header_that_drips_in_is_dropped_after_seconds(client: Client) -> None:
    with connect(client) as line:
        since = time.monotonic()
        while is_open(line):
            line.setblocking(True)
            try:
                line.sendall(b"G")
            except ConnectionError:
                break
            assert time.monotonic() - since < PATIENCE + 10
            time.sleep(0.2)
        assert time.monotonic() - since >= PATIENCE - 1


@pytest.mark.parametrize("head", ["", "X-Forwarded-For: 192.0.2.1\r\n"], ids=["", "forwarded"])
def test_a_listener_with_the_token_is_not_dropped(
    head: str, client: Client, answered: str
) -> None:
    """Events of a long job may come minutes apart. No header says who the other end is."""
    with connect(client) as line:
        path = urlsplit(client.address).path
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: {client.host}\r\n{head}\r\n".encode())
        assert b"200 OK" in line.recv(65536)
        with ExitStack() as closing:
            for _ in range(MOST_WAITING + 1):
                closing.enter_context(connect(client))
            assert is_open(line)


def test_a_request_that_has_arrived_is_read_before_many_later_connections(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """All of them wait for the server before it takes in the first."""
    listen = explorer._listen
    lines: list[socket.socket] = []

    def crowded(port: int) -> socket.socket:
        listening = listen(port)
        listening.listen(1000)
        for _ in range(3 * MOST_WAITING):
            lines.append(socket.create_connection(listening.getsockname(), timeout=30))
        lines[0].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return listening

    monkeypatch.setattr(explorer, "_listen", crowded)
    with ExitStack() as closing, circuits.explore(loaded("planted-sparse"), folder=folder):
        first, *_ = [closing.enter_context(line) for line in lines]
        assert first.recv(65536).startswith(b"HTTP/1.1 421 ")


# Saving


def test_saving_goes_on_after_a_folder_in_the_middle_was_deleted(
    client: Client, answered: str, folder: Path
) -> None:
    first, second, third = (Path(client.post("save", job=answered)["folder"]) for _ in range(3))
    shutil.rmtree(second)
    again = [Path(client.post("save", job=answered)["folder"]) for _ in range(2)]
    assert again[0] == second and again[1].name not in (first.name, third.name)
    for saved in (first, third, *again):
        assert saved.parent == folder and open_result(saved).focus is not None


def test_eight_saves_at_once_all_succeed(client: Client, answered: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(client.post, "save", job=answered) for _ in range(8)]
        saved = {each.result()["folder"] for each in asked}
    assert len(saved) == 8
    assert len({json.dumps(open_result(each).source.fingerprint) for each in saved}) == 1


@contextmanager
def full_disk(at: int) -> Iterator[None]:
    """Within this, no file may grow beyond `at` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("at", [0, 100, 6000])
def test_a_full_disk_leaves_no_half_saved_answer(
    at: int, client: Client, answered: str, folder: Path
) -> None:
    head = str(open_result(client.post("save", job=answered)["folder"]).carriers()[0])
    client.hear("why", job=answered, head=head, key=5, query=8)
    before = sorted(folder.rglob("*"))
    with full_disk(at):
        _, said = client.request("save", json.dumps({"job": answered}).encode())
    assert "cannot write" in json.loads(said)["error"]
    assert sorted(folder.rglob("*")) == before
    saved = Path(client.post("save", job=answered)["folder"])
    assert len(list(saved.glob("why-*.json"))) == 1
