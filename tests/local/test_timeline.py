"""The page of a replay: what it shows, and that it shows nothing else; in headless Chromium where that is installed."""

import itertools
import json
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from incumbent.cli import main
from incumbent.local.report import Answer, Fact, summarise
from incumbent.local.timeline import page

CHROMIUM = shutil.which("chromium")
QUIET = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
MORE_QUIET = ("--disable-component-update", "--disable-sync", "--no-sandbox")
EVIL = "<img src=x onerror=alert(1)>"
ROOT = Path(__file__).parents[2]


def fact(t_ms: int, name: str, *, key: str = "t", request_id: str = "a", **more: Any) -> Fact:
    """A fact of a key of the application."""
    return Fact(t_ms=1_000_000 + t_ms, fact=name, key=f"app/{key}", request_id=request_id, **more)


def run(start_ms: int, end_ms: int, owner: str, *ids: str, key: str = "t", outcome: str = "handled") -> list[Fact]:
    """A run's two facts."""
    about: dict[str, Any] = {"key": key, "request_id": owner, "owner": f"{owner}.x", "message_ids": ids}
    return [fact(start_ms, "run_started", **about), fact(end_ms, "run_ended", outcome=outcome, **about)]


def answered(label: str, t_ms: int, told: str = "") -> Answer:
    """An answer to its caller."""
    return Answer(label=label, request_id=label, ended_at_ms=1_000_000 + t_ms, accepted=not told, told=told)


FACTS = [
    fact(0, "routed", request_id="a", message_id="m-a"),
    fact(200, "routed", request_id="b", message_id="m-b"),
    *run(900, 1_600, "s", "m-a", "m-b", outcome="stopped"),
    fact(1_500, "stop_asked", request_id="s", error="the user said stop"),
    fact(1_610, "handed_over", request_id="s"),
    fact(300, "held", key="killed", request_id="h"),
    fact(1_200, "claimed", key="killed", request_id="k", message_id="m-k"),
    fact(1_200, "run_started", key="killed", request_id="k", owner="k.x", message_ids=("m-k",)),
    fact(1_900, "lost", key="killed", request_id="k"),
    fact(1_000, "routed", key="lost", request_id="l", message_id="m-l"),
    fact(1_700, "claimed", key=EVIL, request_id="c", message_id=EVIL),
    fact(1_900, "claimed", key=EVIL, request_id="d", message_id="m-d"),
    *run(1_700, 2_300, "c", EVIL, key=EVIL),
    *run(1_900, 2_500, "d", "m-d", key=EVIL),
]
ANSWERS = [answered(name, 2_500) for name in "abcdl"] + [answered("k", 2_000, "crash: killed")]


class Dom(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        """Keep it."""
        self.texts.append(data)

    def drawn(self, tag: str, kind: str) -> list[dict[str, str]]:
        """The shapes of a class."""
        return [given for name, given in self.tags if name == tag and kind in given.get("class", "").split()]


def opened(text: str, folder: Path, script: str = "", *more: str) -> str:
    """The page as Chromium has it, after a script of the test's; as it was written, where there is no Chromium."""
    if CHROMIUM is None:
        return text
    (folder / "page.html").write_text(text.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", *QUIET, *MORE_QUIET, *more),
            *(f"--user-data-dir={folder}/profile", "--dump-dom", "page.html"),
        ],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def text() -> str:
    """The page of a replay in which everything happened."""
    return page("A <test> of everything", FACTS, ANSWERS, summarise(FACTS, ANSWERS))


@pytest.fixture(scope="module")
def dom(text: str, tmp_path_factory: pytest.TempPathFactory) -> Dom:
    """The same, opened."""
    return Dom(opened(text, tmp_path_factory.mktemp("page")))


def test_each_key_has_a_lane(dom: Dom) -> None:
    """By its name without the keyspace; those with a fault stand out."""
    sections = [given for tag, given in dom.tags if tag == "section"]
    assert [given.get("class", "") for given in sections] == ["", "", "bad", "bad"]
    assert {"t", "killed", "lost", EVIL} <= set(dom.texts)


def test_arrivals_are_joined_to_the_run_that_had_them(dom: Dom) -> None:
    """Six dots, five of them with a line; what is lost is red, and says so."""
    assert len(dom.drawn("circle", "arrival")) == 5
    assert len(dom.drawn("line", "joins")) == 5
    (lost,) = dom.drawn("circle", "fault")
    assert lost["data-fact"] == "m-l: routed 1 s by l - LOST"


def test_runs_are_bars_coloured_by_owner_and_overlaps_are_red(dom: Dom) -> None:
    """A run whose process was killed lasts until then."""
    bars = dom.drawn("rect", "run")
    assert len(bars) == 4
    assert len({bar["class"].split()[1] for bar in bars}) == 4
    overlapping = dom.drawn("rect", "overlap")
    assert [bar["y"] for bar in overlapping] == ["34", "58"]
    assert overlapping[0]["data-fact"] == f"c: handled {EVIL}, from 1.7 s for 600 ms - OVERLAPS another run"
    (killed,) = (bar for bar in bars if bar["data-fact"].startswith("k: "))
    assert killed["data-fact"] == "k: no end was told m-k, from 1.2 s for 800 ms"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("handover", ["handed over: s, at 1.61 s"]),
        ("stop", ["asked to stop: s the user said stop, at 1.5 s"]),
        ("hold", ["held: h, at 300 ms"]),
        ("fault", ["lost its lease: k, at 1.9 s", "k: crash: killed, at 2 s"]),
    ],
)
def test_marks_say_what_happened(dom: Dom, kind: str, told: list[str]) -> None:
    """Each with its fact for who hovers."""
    assert [given["data-fact"] for given in dom.drawn("text", kind)] == told


def test_hovering_or_tapping_shows_the_fact(text: str, tmp_path: Path) -> None:
    """In the line at the bottom; without a script, the browser shows the shape's title."""
    hover = 'document.querySelector("rect").dispatchEvent(new Event("pointerover", {bubbles: true}))'
    found = opened(text, tmp_path, hover)
    expected = "s: stopped m-a, m-b, from 900 ms for 700 ms"
    (shown,) = re.findall(r'<div id="fact"[^>]*>([^<]*)</div>', found)
    assert shown == (expected if CHROMIUM else "Hover over a mark, or tap it, to see the fact.")
    assert f"<title>{expected}</title>" in found


MEASURE = """
const style = name => getComputedStyle(document.querySelector(name));
const boxes = name => [...document.querySelectorAll(name)].map(each => {
  const box = each.getBoundingClientRect();
  return [box.left, box.right];
});
const found = {
  width: innerWidth,
  scrolls: document.documentElement.scrollWidth,
  texts: boxes("h1, h2, li, .legend span, #fact"),
  ticks: boxes(".axis text"),
  shapes: boxes("[data-fact]"),
  sizes: [...document.querySelectorAll("*")].map(each => parseFloat(getComputedStyle(each).fontSize)),
  colours: {
    page: style("body").backgroundColor, ink: style("body").color, faint: style(".legend").color,
    tick: style(".axis text").fill, bad: style(".summary .fault").color, lane: style("section.bad h2").color,
    lost: style("circle.fault").fill, overlap: style(".run.overlap").fill, killed: style("text.mark.fault").fill,
    run: style(".run.o0").fill, other: style(".run.o1").fill,
  },
};
parent.document.getElementById("measured").textContent = JSON.stringify(found);
"""
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><pre id="measured"></pre>
<iframe width="{width}" height="844" style="border: 0" srcdoc="{page}"></iframe></body>"""


def luminance(colour: str) -> float:
    """How light a colour is, as WCAG has it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """By how much two colours differ in lightness: text can be read from 4.5 on, a shape seen from 3 on."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not here")
@pytest.mark.parametrize("width", [390, 1_200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_reads_well(text: str, tmp_path: Path, width: int, *, dark: bool) -> None:
    """On a phone and on a desktop, by day and in the dark: nothing is cut off, too small, or too faint."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    measured = text.replace("</body>", f"<script>{MEASURE}</script></body>")
    frame = FRAME.format(width=width, page=escape(measured))  # a window has 500 pixels at least
    shown = opened(frame, tmp_path, "", scheme, "--window-size=1300,1000")
    found = json.loads(unescape(re.findall(r'<pre id="measured">([^<]*)</pre>', shown)[0]))
    assert found["width"] == width
    assert found["scrolls"] <= width
    assert all(left >= 0 and right <= width for left, right in found["texts"] + found["ticks"] + found["shapes"])
    assert all(one[1] < following[0] for one, following in itertools.pairwise(found["ticks"]))
    assert min(found["sizes"]) >= 12

    colours = found["colours"]
    assert (luminance(colours["page"]) < 0.1) is dark
    for each in ("ink", "faint", "tick", "bad"):
        assert contrast(colours[each], colours["page"]) >= 4.5, each
    for each in ("run", "other"):
        assert contrast(colours[each], colours["page"]) >= 2.5, each
    assert {colours[each] for each in ("lane", "lost", "overlap", "killed")} == {colours["bad"]}
    assert colours["bad"] not in {colours[each] for each in ("ink", "faint", "run", "other")}


def test_page_loads_nothing_and_runs_nothing_of_the_data(text: str, dom: Dom) -> None:
    """One script, the page's; no address; a policy that forbids the rest; and no tag from a key or an id."""
    assert text.count("<script>") == 1
    assert not re.search(r"https?://|url\(|@import|src=[\"']|href=", text)
    assert "default-src 'none'" in text
    assert "img" not in {tag for tag, _ in dom.tags}


def test_replay_without_facts_is_a_page_too() -> None:
    """Nothing to divide by."""
    assert "No fact was told." in page("Nothing", [], [], summarise([], []))


def test_replay_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--html FILE``; a file that cannot be written is an error that says why."""
    words = [
        "replay",
        str(ROOT / "events" / "scenarios" / "duplicates.json"),
        "--template",
        str(ROOT / "template.yaml"),
    ]
    words += ["--provider", "memory", "--env", "QUIET_MS=1"]
    assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
    assert Dom((tmp_path / "page.html").read_text("utf-8")).drawn("rect", "run")
    assert main([*words, "--html", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err
