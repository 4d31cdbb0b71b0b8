"""Explore in a real browser: from a typed prompt to an answer, with numbers equal to those of `trace`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromium
import pytest
from small_models import loaded

import circuits
from circuits.live import Explorer
from circuits.models.load import load
from circuits.models.model import Model
from circuits.tracing.records import Circuit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
PROMPT, LARGE, LAST = 'The opposite of "large" is "', 5, 8


@pytest.fixture(scope="module")
def mini() -> Model:
    return loaded("mini")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explored")


@pytest.fixture(scope="module")
def opened(mini: Model, folder: Path) -> Iterator[Explorer]:
    with circuits.explore(mini, folder=folder) as page:
        yield page


@pytest.fixture
def tab(browser: Browser, opened: Explorer) -> Iterator[Any]:
    """Opens tabs of the live page; at the end none complained and all spoke with the server alone."""
    tabs, said, asked = [], list[str](), list[str]()

    def open_tab(fragment: str = "") -> Page:
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.set_default_timeout(60_000)  # a loaded machine measures slowly
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(opened.address + fragment)
        tabs.append(page)
        return page

    yield open_tab
    for page in tabs:
        page.close()
    assert said == []
    assert all(url.startswith((opened.address, "data:", "blob:")) for url in asked)


def type_prompt(page: Page, text: str = PROMPT, *, key: int = LARGE) -> None:
    page.locator("#prompt").fill(text)
    page.locator(f'.ask-chip[data-position="{key}"]').click()
    page.locator(".proposal").first.wait_for()
    page.locator("#ask-next .next").first.wait_for()  # choosing a key does not lose them


def ask(page: Page) -> None:
    page.locator("#ask-go").click()
    page.locator("#ask-said", has_text="answered in").wait_for()


def shown_numbers(page: Page) -> dict[str, Any]:
    """What the page says of the question: the sentence, the carriers, the controls."""
    facts = dict(
        zip(
            page.locator(".controls dt").all_inner_texts(),
            page.locator(".controls .value").all_inner_texts(),
            strict=True,
        )
    )
    return {"carriers": page.locator(".tile .name").all_inner_texts(), "facts": facts}


def download_csv(page: Page, tmp_path: Path) -> dict[str, float]:
    with page.expect_download() as waited:
        page.locator(".tool", has_text="CSV").click()
    file = tmp_path / "numbers.csv"
    waited.value.save_as(file)
    import csv

    rows = csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines())
    return {row["head"]: float(row["effect"]) for row in rows}


def test_from_a_typed_prompt_to_an_answer_with_the_numbers_of_trace(
    tab: Any, mini: Model, tmp_path: Path
) -> None:
    page = tab()
    page.locator("#prompt").fill(PROMPT)
    page.locator(".ask-chip").nth(LAST).wait_for()
    words = page.locator(".ask-chip .word").all_inner_texts()
    assert words[LARGE] == "large" and page.locator(".ask-chip .at").all_inner_texts()[
        -1
    ] == str(LAST)
    page.locator("#ask-next .next").first.wait_for()
    assert page.locator("#ask-next .next").first.inner_text().startswith("small ")
    assert page.locator("#ask-go").is_disabled()
    page.locator(f'.ask-chip[data-position="{LARGE}"]').click()
    page.locator(".ask-switch input[value=query]").check()
    page.locator(f'.ask-chip[data-position="{LAST - 1}"]').click()
    page.locator(f'.ask-chip[data-position="{LAST}"]').click()  # the switch stays on query
    assert form_of(page)[:2] == (LARGE, LAST)
    page.locator(".proposal").first.wait_for()
    word = page.locator(".proposal b").first.inner_text()
    assert page.locator(f'.other[data-position="{LARGE}"]').input_value() == word
    ask(page)
    found = circuits.trace(mini, PROMPT, key=LARGE, query=LAST, swap={LARGE: word})
    mapping = found.mapping()
    assert page.locator(".tile .name").all_inner_texts() == [
        str(head) for head in found.carriers()
    ]
    assert shown_numbers(page)["facts"]["Total"] == f"{mapping.total:z.2f}".replace("-", "−")
    exact = {str(each.head): each.effect for each in mapping.heads}
    assert download_csv(page, tmp_path) == exact  # to the last digit
    assert page.locator(".verdict").first.inner_text().startswith("A clear question")


def form_of(page: Page) -> tuple[int, int, str, dict[int, str], str]:
    """What the form asks: key, query, prompt, the words that are swapped, the model."""
    key, query = (
        int(str(page.locator(f".ask-chip.{end}").get_attribute("data-position")))
        for end in ("key", "query")
    )
    swap = {}
    for field in page.locator(".other.changed").all():
        swap[int(str(field.get_attribute("data-position")))] = field.input_value()
    prompt, model = (page.locator(name).input_value() for name in ("#prompt", "#model"))
    return key, query, prompt, swap, model


def shown_question(page: Page) -> tuple[int, int, str, dict[int, str], str]:
    """The same of the question that is answered in the first column."""
    key = int(str(page.locator(".picture .token.key").first.get_attribute("data-position")))
    query = int(str(page.locator(".picture .token.query").first.get_attribute("data-position")))
    line = page.locator(".heading .lede").first.inner_text()
    swap = {int(place): word for place, word in re.findall(r"\((\d+)\) → ([^,)]+)", line)}
    model = page.locator(".column h2").first.inner_text()
    return key, query, page.locator("h1").inner_text(), swap, model


def test_from_opening_to_the_first_answer_is_one_click(tab: Any, mini: Model) -> None:
    page = tab()
    page.locator("#ask-examples button", has_text="opposite").click()
    page.locator("#ask-said", has_text="answered in").wait_for()
    found = circuits.trace(mini, PROMPT, key=LARGE, query=LAST, swap={LARGE: "hot"})
    named = page.locator(".tile .name").all_inner_texts()
    assert named == [str(head) for head in found.carriers()]


def test_whatever_question_is_shown_the_form_says_it(tab: Any) -> None:
    page = tab()
    draft = page.locator("#ask-draft")
    page.locator("#ask-examples button", has_text="opposite").click()
    page.locator("#ask-said", has_text="answered in").wait_for()
    asked = form_of(page)
    first = page.locator("#prompts").input_value()
    assert asked == (LARGE, LAST, PROMPT, {LARGE: "hot"}, "mini") == shown_question(page)
    # A token of the diagram is clicked: its question is measured.
    page.locator('.token[data-position="2"]').first.click()
    page.locator('.picture .token.key[data-position="2"]').wait_for()
    page.locator("#ask-said", has_text="answered in").wait_for()
    assert form_of(page) == shown_question(page) == (2, *asked[1:])
    # One that runs backwards is shown, too, but cannot be asked.
    page.locator("#pick-query").check()
    page.locator('.token[data-position="1"]').first.click()
    assert form_of(page) == shown_question(page) and page.locator("#ask-go").is_disabled()
    # The first question again, by the history, and both side by side.
    second = page.locator("#prompts").input_value()
    page.locator("#prompts").select_option(first)
    assert form_of(page) == shown_question(page) == asked
    page.locator("#beside").select_option(second)
    assert page.locator(".column").count() == 2 and form_of(page) == asked
    assert draft.inner_text() == ""
    # What is edited is no longer what is shown, and the page says so.
    page.locator("#beside").select_option(index=0)
    field = page.locator(f'.other[data-position="{LARGE}"]')
    field.fill("hot cold")
    field.press("Tab")
    assert "another question" in draft.inner_text()
    page.locator("#ask-go").click()
    page.locator("#ask-error", has_text="same number of tokens").wait_for()
    line = page.locator("#ask-error").inner_text()
    assert "'large' is 1 token, 'hot cold' is 2" in line
    assert form_of(page)[3] == {LARGE: "hot cold"} and "another question" in draft.inner_text()
    page.reload()
    page.locator(".column").wait_for()
    assert form_of(page) == shown_question(page) == asked


NOTE_WORDS = """() => {
  const noted = (window.noted = []);
  const note = () => {
    window.hasWaited ||= document.querySelector(".pending") !== null;
    if (!document.querySelector(".column")) return;
    const isPartly = document.querySelector(".verdict").textContent.startsWith("measuring");
    const tiles = document.querySelector(".tiles");
    const empty = tiles.children.length ? "" : tiles.dataset.empty;
    noted.push([isPartly, document.querySelector("main").innerText + empty]);
  };
  new MutationObserver(note).observe(document.body, { childList: true, subtree: true });
}"""


def test_a_null_question_is_said_to_be_measured_and_then_to_be_nothing(tab: Any) -> None:
    """What the counterfactual changes stands at `large`; nothing of it is read at `The`."""
    page = tab()
    page.locator("#ask-examples button", has_text="opposite").click()
    page.locator("#ask-said", has_text="answered in").wait_for()
    page.evaluate(NOTE_WORDS)
    page.locator('.ask-chip[data-position="1"]').click()
    field = page.locator(f'.other[data-position="{LARGE}"]')
    field.fill("hot")
    field.press("Tab")
    ask(page)
    assert page.evaluate("window.hasWaited")
    noted = page.evaluate("window.noted")
    partly = [text for is_partly, text in noted if is_partly]
    assert partly and all("measuring…" in text for text in partly)
    assert not any(re.search("[Nn]o head carries", text) for text in partly)
    assert "clear" not in str(page.locator(".verdict").get_attribute("class")).split()
    assert "withheld" in page.locator("main").inner_text()
    assert page.locator(".scale").inner_text().split() == ["−0.05", "+0.05"]


def test_a_head_is_knocked_out_from_the_diagram_and_the_answer_stands_beside_the_first(
    tab: Any, mini: Model
) -> None:
    page = tab()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#ask-examples button", has_text="opposite").click()
    page.locator("#ask-said", has_text="answered in").wait_for()
    name = page.locator(".chip-head.front text").first.text_content()
    page.locator(".chip-head.front").first.click()
    page.locator(".diagram .actions button", has_text="Without").click()
    page.locator(".column").nth(1).wait_for()
    found = circuits.trace(mini, PROMPT, key=LARGE, query=LAST, swap={LARGE: "hot"})
    less = found.without(str(name), model=mini)
    assert page.locator(".column h2").all_inner_texts() == ["mini", f"mini without {name}"]
    second = page.locator(".column").nth(1)
    named = second.locator(".tile .name").all_inner_texts()
    assert named == [str(head) for head in less.carriers()]
    total = second.locator(".controls .value").first.inner_text()
    assert total == f"{less.mapping().total:z.2f}".replace("-", "−")
    # Copied, both run and give the same.
    page.locator("#ask-python").click()
    program = page.evaluate("navigator.clipboard.readText()")
    assert program.startswith("import circuits\n") and program.count("circuits.trace(") == 2
    given: dict[str, Any] = {}
    exec(program, given)
    assert given["found"].mapping() == less.mapping()


def test_the_counterfactual_can_be_edited_token_by_token(tab: Any, mini: Model) -> None:
    page = tab()
    type_prompt(page)
    field = page.locator(f'.other[data-position="{LARGE}"]')
    field.fill("fast")
    field.press("Tab")
    assert "changed" in str(
        page.locator(f'.other[data-position="{LARGE}"]').get_attribute("class")
    )
    ask(page)
    assert "large(5) → fast" in page.locator(".heading .lede").inner_text()
    found = circuits.trace(mini, PROMPT, key=LARGE, query=LAST, swap={LARGE: "fast"})
    assert page.locator(".tile .name").all_inner_texts() == [
        str(head) for head in found.carriers()
    ]


def test_a_head_is_explained_another_key_traced_and_the_answer_saved_and_copied(
    tab: Any, mini: Model, folder: Path, browser: Browser
) -> None:
    page = tab()
    type_prompt(page)
    ask(page)
    word = page.locator(f'.other[data-position="{LARGE}"]').input_value()
    found = circuits.trace(mini, PROMPT, key=LARGE, query=LAST, swap={LARGE: word})
    page.locator(".tile").first.click()
    page.locator(".inspector .actions button", has_text="Why?").click()
    page.locator(".tree .writer").first.wait_for()
    told = circuits.why(found, found.carriers()[0], model=mini)
    shown = page.locator(".tree .side .num").all_text_contents()
    assert shown == [f"{side.effect:z.3f}".replace("-", "−") for side in told.sides]
    page.locator("#ask-save").click()
    page.locator("#ask-said", has_text="saved in").wait_for()
    saved = Path(page.locator("#ask-said").inner_text().removeprefix("saved in "))
    assert saved.parent == folder and Circuit.load(saved) == found
    written = {file.name for file in saved.iterdir()}
    assert {"figure.svg", "circuit.svg", "page.html", "circuit.json"} <= written
    assert '"writers":[[' in (saved / "page.html").read_text()
    page.keyboard.press("Escape")
    page.locator('.token[data-position="2"]').click()
    page.locator(".status", has_text="opposite (2)").wait_for()
    page.locator("#ask-said", has_text="answered in").wait_for()
    other = circuits.trace(mini, PROMPT, key=2, query=LAST, swap={LARGE: word})
    assert shown_numbers(page)["facts"]["Total"] == f"{other.mapping().total:z.2f}".replace(
        "-", "−"
    )
    assert page.locator("#prompts option").count() >= 2  # the history


def test_a_question_that_is_begun_before_the_history_arrives_stays(tab: Any) -> None:
    ask_first = tab()
    type_prompt(ask_first)
    ask(ask_first)  # so that there is a history
    page, held = tab(), []
    page.route("**/history", lambda route: held.append(route))
    page.reload()
    page.locator("#second").select_option("mini-sparse")
    type_prompt(page)
    with page.expect_response("**/history"):
        held.pop().continue_()
    page.locator("#prompts option").nth(1).wait_for(state="attached")
    assert page.locator("#prompt").input_value() == PROMPT
    assert page.locator("#second").input_value() == "mini-sparse"
    assert page.locator(".tile").count() == 0


def test_two_models_stand_side_by_side(tab: Any, mini: Model) -> None:
    page, held = tab(), []

    def hold_first(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/ask", hold_first)
    page.locator("#second").select_option("mini-sparse")
    type_prompt(page)
    page.locator("#ask-go").click()
    page.locator(".pending").nth(1).wait_for()  # both are said to be measured
    while not held:
        page.wait_for_timeout(10)
    held[0].continue_()  # however slow its way, the second does not overtake it
    page.locator(".column").nth(1).locator(".tile").first.wait_for()
    page.locator("#ask-cancel").wait_for(state="hidden")  # both have answered
    assert page.locator("#second").input_value() == "mini-sparse"
    word = page.locator(f'.other[data-position="{LARGE}"]').input_value()
    for column, name in enumerate(("mini", "mini-sparse")):
        found = circuits.trace(load(name), PROMPT, key=LARGE, query=LAST, swap={LARGE: word})
        names = page.locator(".column").nth(column).locator(".tile .name").all_inner_texts()
        assert names == [str(head) for head in found.carriers()]


def test_a_broken_question_is_one_line_of_the_page_and_the_next_is_answered(tab: Any) -> None:
    page = tab()
    page.locator("#prompt").fill("zebra xylophone")
    page.locator("#ask-error", has_text="does not know").wait_for()
    type_prompt(page)
    assert page.locator("#ask-error").inner_text() == ""
    field = page.locator(f'.other[data-position="{LARGE}"]')
    field.fill("hot cold")
    field.press("Tab")
    page.locator("#ask-go").click()
    page.locator("#ask-error", has_text="same number of tokens").wait_for()
    page.locator(".proposal").first.click()
    ask(page)
    assert page.locator(".tile").count() > 0


def test_a_question_that_is_cancelled_leaves_the_next_one_right(tab: Any, mini: Model) -> None:
    page = tab()
    type_prompt(page)
    for _ in range(4):
        page.locator("#ask-go").click()
        # Not a click of the mouse: an answer that is there at once hides the button.
        page.evaluate("document.getElementById('ask-cancel').click()")
        page.locator("#ask-said", has_text=re.compile("cancelled|answered")).wait_for()
    ask(page)
    word = page.locator(f'.other[data-position="{LARGE}"]').input_value()
    found = circuits.trace(mini, PROMPT, key=LARGE, query=LAST, swap={LARGE: word})
    assert page.locator(".tile .name").all_inner_texts() == [
        str(head) for head in found.carriers()
    ]


def test_two_tabs_at_once_get_their_own_answers(tab: Any, mini: Model) -> None:
    one, two = tab(), tab()
    type_prompt(one)
    type_prompt(two, key=2)
    one.locator("#ask-go").click()
    two.locator("#ask-go").click()
    for page in (one, two):
        page.locator("#ask-said", has_text="answered in").wait_for()
    for page, key in ((one, LARGE), (two, 2)):
        word = page.locator(f'.other[data-position="{key}"]').input_value()
        found = circuits.trace(mini, PROMPT, key=key, query=LAST, swap={key: word})
        assert page.locator(".tile .name").all_inner_texts() == [
            str(head) for head in found.carriers()
        ]
        assert f"({key}) →" in page.locator(".status").inner_text()


def test_a_reloaded_page_shows_what_it_showed(tab: Any) -> None:
    page = tab()
    type_prompt(page)
    ask(page)
    page.locator(".tile").first.click()
    page.wait_for_url(re.compile("pin="))
    before = page.locator(".status").inner_text(), page.locator(".inspector h3").inner_text()
    page.reload()
    page.locator(".inspector.is-pinned").wait_for()
    assert (
        page.locator(".status").inner_text(),
        page.locator(".inspector h3").inner_text(),
    ) == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1300])
def test_no_serious_fault_of_accessibility_and_nothing_wider_than_the_window(
    tab: Any, scheme: str, width: int
) -> None:
    page = tab()
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    type_prompt(page)
    ask(page)
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.serious_faults(page) == []


def test_the_command_says_its_address_and_stops_cleanly_on_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "circuits", "explore", "--no-browser", "--port", "0"]
    # Tests in the background inherit a deaf ear.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "preexec_fn": heard,
    }
    process = subprocess.Popen(command, cwd=tmp_path, **pipes)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert re.match(
        r"exploring mini at http://127\.0\.0\.1:\d+/[\w-]{32}/ \(Ctrl-C stops it\)", line
    )
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=60)
    # A slow machine says in between that it is loading.
    assert process.returncode == 0 and complaints.endswith("stopped\n")
    assert "Traceback" not in complaints
