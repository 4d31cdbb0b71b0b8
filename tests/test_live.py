"""The live page's server: answers are those of `trace`, and what does not belong is refused in a line."""

from __future__ import annotations

import html
import json
import random
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from small_models import loaded

import circuits
from circuits.cli import main
from circuits.errors import CircuitsError, ModelError, PromptError
from circuits.live import Explorer
from circuits.live.answers import propose
from circuits.live.jobs import MOST_WAITING, Cancelled, Job, JobQueue
from circuits.live.requests import LARGEST_BODY, TraceRequest
from circuits.models.model import Model
from circuits.show import to_scene
from circuits.show.page import pack, pack_why
from circuits.tracing.records import Circuit
from circuits.zoo import planted

PROMPT, KEY, QUERY = planted.PROMPT, planted.KEY, planted.QUERY


@dataclass(frozen=True)
class Client:
    """Speaks HTTP with the server, as its page would unless a test says otherwise."""

    address: str

    @property
    def host(self) -> str:
        return urlsplit(self.address).netloc

    def request(
        self,
        path: str,
        body: bytes | None = None,
        *,
        method: str = "POST",
        path_whole: str | None = None,
        **headers: str,
    ) -> tuple[int, str]:
        asked = HTTPConnection(self.host, timeout=60)
        sent = {"Host": self.host, "Origin": f"http://{self.host}"} | headers
        asked.putrequest(
            method, path_whole or urlsplit(self.address).path + path, skip_host=True
        )
        for name, value in sent.items():
            if value:
                asked.putheader(name, value)
        if body is not None and "Content-Length" not in headers:
            asked.putheader("Content-Length", str(len(body)))
        asked.endheaders(body)
        answer = asked.getresponse()
        text = answer.read().decode()
        asked.close()
        return answer.status, text

    def post(self, path: str, **body: Any) -> Any:
        _, text = self.request(path, json.dumps(body).encode())
        read = json.loads(text)
        if "error" in read:
            raise CircuitsError(read["error"])
        return read

    def events(self, job: str) -> Iterator[tuple[str, Any]]:
        """What the server says of a job, as it says it."""
        asked = HTTPConnection(self.host, timeout=120)
        asked.request(
            "GET", urlsplit(self.address).path + f"jobs/{job}", headers={"Host": self.host}
        )
        name = ""
        for line in asked.getresponse():
            text = line.decode().rstrip()
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                yield name, json.loads(text[6:])
        asked.close()

    def hear(self, path: str, **body: Any) -> list[tuple[str, Any]]:
        return list(self.events(self.post(path, **body)["job"]))


@pytest.fixture(scope="module")
def sparse() -> Model:
    return loaded("planted-sparse")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explored")


@pytest.fixture(scope="module")
def opened(sparse: Model, folder: Path) -> Iterator[Explorer]:
    with circuits.explore(sparse, folder=folder) as page:
        yield page


@pytest.fixture(scope="module")
def client(opened: Explorer) -> Client:
    return Client(opened.address)


@pytest.fixture(scope="module")
def traced(sparse: Model) -> Circuit:
    return circuits.trace(sparse, PROMPT, key=KEY, query=QUERY, swap={KEY: "hot"})


def question(**changed: Any) -> dict[str, Any]:
    asked = {
        "model": "planted-sparse",
        "prompt": PROMPT,
        "key": KEY,
        "query": QUERY,
        "group": "g",
    }
    return asked | {"swap": {str(KEY): "hot"}} | changed


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


# Answers


def test_an_answer_is_that_of_trace_to_the_last_digit_and_grows_on_the_way(
    client: Client, traced: Circuit
) -> None:
    events = client.hear("ask", **question())
    circuit_events = [value for name, value in events if name == "circuit"]
    exact = plain(pack(to_scene(traced)))
    assert {name: circuit_events[-1][name] for name in exact} == exact
    total, carriers, controls, *_ = (value["mappings"][0] for value in circuit_events)
    assert total["total"] == traced.mapping().total and total["path"] == []
    assert carriers["path"] and carriers["controls"] is None
    assert (
        controls["controls"] == exact["mappings"][0]["controls"]
        and circuit_events[2]["spans"] == []
    )
    assert [value.get("unfinished", False) for value in circuit_events] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert events[0][0] == "waiting" and events[-1][0] == "done"
    assert {name for name, _ in events} == {"waiting", "progress", "circuit", "done"}


@pytest.mark.long
def test_the_python_call_of_an_answer_gives_the_same(traced: Circuit) -> None:
    asked = TraceRequest(
        model="planted-sparse",
        prompt=PROMPT,
        key=KEY,
        query=QUERY,
        group="g",
        swap={KEY: "hot"},
    )
    ran: dict[str, Any] = {"circuits": circuits}
    exec(asked.to_python(), ran)
    assert ran["found"] == traced


@pytest.mark.long
def test_without_a_head_the_answer_is_that_of_without(
    client: Client, sparse: Model, traced: Circuit
) -> None:
    head = str(traced.carriers()[0])
    events = client.hear("ask", **question(without=[head]))
    (answer,) = [value for name, value in events if name == "circuit"]
    less = traced.without(head, model=sparse)
    exact = plain(pack(to_scene(less)))
    assert answer["mappings"] == exact["mappings"] and "unfinished" not in answer
    assert answer["name"] == f"planted-sparse without {head}"
    ran: dict[str, Any] = {"circuits": circuits}
    exec(answer["python"], ran)
    assert ran["found"].mappings == less.mappings
    name, told = client.hear("ask", **question(without=["L99H0"]))[-1]
    assert name == "failed" and "L99H0" in told["error"]


def test_why_is_measured_for_a_head_of_an_answer(
    client: Client, sparse: Model, traced: Circuit
) -> None:
    job = client.post("ask", **question())["job"]
    assert [*client.events(job)][-1][0] == "done"
    head = str(traced.carriers()[0])
    told = dict(client.hear("why", job=job, head=head, key=KEY, query=QUERY))["why"]
    assert told == plain(pack_why(circuits.why(traced, head, model=sparse)))
    with pytest.raises(CircuitsError, match="is remembered"):
        client.post("why", job="nobody", head=head, key=KEY, query=QUERY)


def test_an_answer_is_saved_as_a_folder_that_render_reads_with_its_writers(
    client: Client, traced: Circuit, folder: Path
) -> None:
    job = client.post("ask", **question())["job"]
    assert [*client.events(job)][-1][0] == "done"
    client.hear("why", job=job, head=str(traced.carriers()[0]), key=KEY, query=QUERY)
    saved = Path(client.post("save", job=job)["folder"])
    assert saved.parent == folder and Circuit.load(saved) == traced
    assert (saved / "figure.svg").exists() and (saved / "circuit.svg").exists()
    page = (saved / "page.html").read_text()
    assert '"writers":[[' in page
    ran = CliRunner().invoke(main, ["render", str(saved), "--format", "html"])
    assert ran.exit_code == 0, ran.output
    assert '"writers":[[' in (saved / "page.html").read_text()
    again = Path(client.post("save", job=job)["folder"])
    assert again != saved and Circuit.load(again) == traced


def test_tokens_and_next_words_are_those_of_the_model(
    client: Client, sparse: Model, traced: Circuit
) -> None:
    read = client.post("tokens", model="planted-sparse", prompt=PROMPT)
    assert read["words"] == list(traced.prompt.words) and read["bos"] == 1
    words = dict(client.hear("next", model="planted-sparse", prompt=PROMPT))["words"]
    assert words[0]["word"].strip() == traced.output.token
    assert words[0]["probability"] == pytest.approx(traced.output.probability)
    assert [word["probability"] for word in words] == sorted(
        (w["probability"] for w in words), reverse=True
    )


def test_proposed_words_are_one_token_and_change_the_answer(
    client: Client, sparse: Model
) -> None:
    words = dict(client.hear("propose", model="planted-sparse", prompt=PROMPT, key=KEY))[
        "proposals"
    ]
    assert words and words == [
        {**each, "spelled": each["word"].strip()} for each in propose(sparse, PROMPT, KEY)
    ]
    for each in words:
        found = circuits.to_pair(sparse, PROMPT, swap={KEY: each["word"]})
        assert found.differs_at == (KEY,) and found.metric.foil_text == each["says"]
        assert found.metric.answer_text != found.metric.foil_text


@pytest.mark.long
def test_another_model_of_the_table_can_be_asked_and_no_other_file(client: Client) -> None:
    events = client.hear("ask", **question(model="planted-dense"))
    assert events[-1][0] == "done" and any(name == "circuit" for name, _ in events)
    for name in ("/etc", "../mini", "gpt3", "/etc/passwd"):
        with pytest.raises(CircuitsError, match="no model"):
            client.post("ask", **question(model=name))


# Cancelling and waiting


@pytest.mark.long
def test_a_question_that_is_cancelled_half_way_leaves_the_next_one_right(
    client: Client, traced: Circuit
) -> None:
    for stop_at in ("total", "carriers"):
        job = client.post("ask", **question())["job"]
        seen: list[str] = []
        for name, value in client.events(job):
            seen.append(name)
            measured = name == "circuit" and (
                stop_at == "total" or value["mappings"][0]["path"]
            )
            if measured and "stopped" not in seen:
                client.post("cancel", job=job)
                seen.append("stopped")
        assert seen[-1] in ("cancelled", "done")
    last = [value for name, value in client.hear("ask", **question()) if name == "circuit"][-1]
    assert last["mappings"] == plain(pack(to_scene(traced)))["mappings"]


def test_a_job_that_is_cancelled_ends_where_it_next_reports_its_progress() -> None:
    jobs, begun, go_on = JobQueue(), threading.Event(), threading.Event()

    def work(job: Job) -> str:
        begun.set()
        go_on.wait(30)
        job.progress("carriers", 1, 2)
        return "never"

    running, waiting = jobs.add(Job(work)), jobs.add(Job(work))
    begun.wait(30)
    jobs.cancel(waiting.id)
    assert waiting.state == "cancelled"  # at once, as it had not begun
    jobs.cancel(running.id)
    go_on.set()
    after = jobs.add(Job(lambda job: "answer"))
    jobs.stop()
    assert running.state == "cancelled" and running.answer is None
    assert after.state in ("done", "cancelled")


@pytest.mark.parametrize("ends", ["done", "failed", "cancelled"])
def test_a_job_is_over_once_its_last_event_is_there_and_not_before(ends: str) -> None:
    """Whoever looks at it in between, such as the stream of its events, waits for the last one."""
    jobs = JobQueue()

    class Events(list[tuple[str, Any]]):
        def append(self, event: tuple[str, Any]) -> None:
            looks.append((event[0], job.is_over))
            super().append(event)
            looks.append((event[0], job.is_over))

    def work(job: Job) -> None:
        if ends == "failed":
            raise PromptError("no")
        if ends == "cancelled":
            raise Cancelled

    looks: list[tuple[str, bool]] = []
    job = Job(work)
    job.events = Events()
    jobs.add(job)
    while not job.is_over:
        threading.Event().wait(0.01)
    jobs.stop()
    assert looks == [("waiting", False), ("waiting", False), (ends, False), (ends, True)]


def test_one_job_runs_at_a_time_quick_ones_first_and_the_queue_is_limited() -> None:
    jobs, go_on, order = JobQueue(), threading.Event(), list[Job]()

    def work(job: Job) -> None:
        go_on.wait(30)
        order.append(job)

    first = jobs.add(Job(work))
    while first.state == "waiting":
        threading.Event().wait(0.01)
    slow = [jobs.add(Job(work)) for _ in range(MOST_WAITING - 1)]
    quick = jobs.add(Job(work, quick=True))
    with pytest.raises(PromptError, match="waiting"):
        jobs.add(Job(work))
    finished = threading.Event()
    slow[-1].listeners.append(lambda: finished.set() if slow[-1].is_over else None)
    go_on.set()
    assert finished.wait(30)
    assert order == [first, quick, *slow]
    jobs.stop()


def test_a_job_that_breaks_off_is_one_line_and_the_next_is_done() -> None:
    jobs = JobQueue()

    def broken(job: Job) -> None:
        raise ZeroDivisionError("two\nlines")

    bad, good = jobs.add(Job(broken)), jobs.add(Job(lambda job: 5))
    while not good.is_over:
        threading.Event().wait(0.01)
    assert bad.state == "failed" and "\n" not in bad.events[-1][1]["error"]
    assert good.answer == 5
    jobs.stop()


# Refusals


def wild_requests(client: Client) -> Iterator[tuple[str, tuple[int, str]]]:
    """200 requests that do not belong, each with what it is."""
    draw, ask = random.Random(0), json.dumps(question()).encode()
    paths = ("ask", "tokens", "next", "propose", "why", "cancel", "save")
    for number in range(25):
        path = draw.choice(paths)
        token = "".join(draw.choices("abcdefghij-_", k=draw.randrange(1, 60)))
        yield "wrong token", client.request("", ask, path_whole=f"/{token}/{path}")
        foreign = draw.choice(
            ("http://evil.example", "null", "http://127.0.0.1:1", "https://" + client.host)
        )
        yield "foreign Origin", client.request(path, ask, Origin=foreign)
        yield "no Origin", client.request(path, ask, Origin="")
        yield (
            "foreign Host",
            client.request(
                path, ask, Host=draw.choice(("evil.example", "127.0.0.1", "[::1]:80"))
            ),
        )
        huge = b"x" * (LARGEST_BODY + 1 + number)
        yield "huge body", client.request(path, huge[:1], **{"Content-Length": str(len(huge))})
        broken = ask[: draw.randrange(len(ask))] + draw.choice(
            (b"", b"\xff", b"}}", b"[" * 900)
        )
        yield "bad JSON", client.request(path, broken)
        long_prompt = json.dumps(
            {"model": "planted-sparse", "prompt": "large " * 1_667}
        ).encode()
        yield "10,000 characters", client.request(draw.choice(("tokens", "next")), long_prompt)
        other = {
            "model": draw.choice((3, None, "mini\0", "")),
            "prompt": draw.choice(("", 7, "a")),
            "key": -1,
        }
        yield "wrong fields", client.request(path, json.dumps(other | {"more": 1}).encode())


@pytest.mark.long
def test_two_hundred_wild_requests_are_refused_in_one_line_each_and_the_server_lives(
    client: Client, traced: Circuit
) -> None:
    refused = list(wild_requests(client))
    assert len(refused) == 200
    for what, (status, text) in refused:
        assert 400 <= status < 500, (what, status, text)
        line = json.loads(text)["error"] if text.startswith("{") else text.rstrip("\n")
        assert line and "\n" not in line and "Traceback" not in line, (what, text)
        assert len(line) < 600, (what, len(line))
    assert client.post("tokens", model="planted-sparse", prompt=PROMPT)["bos"] == 1
    assert client.hear("ask", **question())[-1][0] == "done"


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"key": 8, "query": 2}, "stands after query"),
        ({"key": 99}, "lies outside the prompt"),
        ({"swap": {"5": "large"}}, "same as the prompt"),
        ({"prompt": "zebra xylophone"}, "does not know"),
        ({"swap": {"5": "hot cold"}}, "same number of tokens"),
    ],
)
def test_a_broken_question_is_answered_with_its_line(
    client: Client, changed: dict[str, Any], line: str
) -> None:
    name, told = client.hear("ask", **question(**changed))[-1]
    assert name == "failed" and line in told["error"] and "\n" not in told["error"]


def test_nothing_is_served_but_the_page_and_its_answers(client: Client) -> None:
    base = urlsplit(client.address).path
    for path in (
        "page.css",
        "../",
        "%2e%2e/",
        "jobs/",
        "static/x",
        "..%2f..%2fetc/passwd",
        "api",
        "favicon.ico",
    ):
        status, text = client.request("", method="GET", path_whole=base + path)
        assert status in (400, 404) and "root:" not in text, path
    assert client.request("", method="GET", path_whole="/")[0] == 404
    assert client.request("ask", method="GET")[0] == 405
    assert client.request("", method="DELETE")[0] == 405
    status, page = client.request("", method="GET")
    policy = html.unescape(page.split('Content-Security-Policy" content="')[1].split('">')[0])
    assert status == 200 and "connect-src 'self'" in policy and "unsafe" not in policy


def test_it_listens_on_this_machine_alone_at_an_address_that_cannot_be_guessed(
    opened: Explorer,
) -> None:
    place = urlsplit(opened.address)
    assert place.hostname == "127.0.0.1" and len(place.path.strip("/")) >= 32
    assert opened.address in repr(opened) and "<iframe" in opened._repr_html_()


def test_a_stopped_page_frees_its_port(sparse: Model) -> None:
    page = circuits.explore(sparse)
    port = urlsplit(page.address).port
    page.stop()
    assert repr(page).endswith("stopped)")
    again = circuits.explore(sparse, port=port or 0)
    assert urlsplit(again.address).port == port
    again.stop()


def test_a_port_that_is_taken_is_refused_in_one_line(sparse: Model) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PromptError, match="give another --port"):
            circuits.explore(sparse, port=taken.getsockname()[1])


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ModelError, match="pip install"):
        circuits.explore("mini")
    ran = CliRunner().invoke(main, ["explore", "--no-browser"])
    assert ran.exit_code == 1 and ran.stderr.count("\n") == 1
