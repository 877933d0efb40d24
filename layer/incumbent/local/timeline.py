"""Draws a replay as one HTML page that needs nothing else: a lane for each key, with its arrivals, runs and marks.

Positions are percentages of the time that the replay took, so the page fits any width without a script. Its only script
shows what is hovered over or tapped. All text is escaped, and the page's policy forbids to load anything.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources

from incumbent.local.report import Answer, Fact, Summary, overlaps, runs, summary_lines, thread_of
from incumbent.owners import request_of
from incumbent.validation import printable

_COLOURS = 8
_ARRIVALS = frozenset({"claimed", "routed", "duplicate", "busy", "sent"})
_ENDED = ("crash", "timeout")
_MARKS = {
    "handed_over": ("handover", "→", "handed over"),
    "lost": ("fault", "✕", "lost its lease"),
    "stop_asked": ("stop", "■", "asked to stop"),
    "stop_sent": ("stop", "□", "stop"),
    "held": ("hold", "‖", "held"),
    "dead": ("fault", "✝", "gave up"),
}
_TOP, _DOT_Y, _ROW, _BAR = 34, 14, 24, 16
_TICKS = 6
_EDGE = 0.04
_FAULT = ' class="fault"'
_FAULTS = ("lost:", "handled twice:", "overlap:")
_SECOND_MS = 1_000


@dataclass(slots=True, kw_only=True, eq=False)
class _Bar:
    """A run as it is drawn; ``row`` is 0 unless it overlaps another."""

    owner: str
    start_ms: float
    end_ms: float
    messages: tuple[str, ...] = ()
    outcome: str = "no end was told"
    row: int = 0
    overlaps: bool = False


@dataclass(slots=True, kw_only=True)
class _Lane:
    """What is drawn of a key."""

    bars: list[_Bar] = field(default_factory=list)
    arrivals: dict[str, Fact] = field(default_factory=dict)
    marks: list[tuple[float, str, str, str]] = field(default_factory=list)


def page(
    title: str,
    facts: Iterable[Fact],
    answers: Sequence[Answer],
    summary: Summary,
    name: Callable[[str], str] = str,
) -> str:
    """Return the page. ``name`` tells what a request id is called."""
    facts = sorted(facts, key=lambda fact: fact.t_ms)
    lanes = _lanes(facts, answers, name)
    times = [fact.t_ms for fact in facts] + [answer.ended_at_ms for answer in answers]
    start_ms, end_ms = min(times, default=0), max(times, default=1)
    scale = _Scale(start_ms, max(end_ms - start_ms, 1))
    owners = dict.fromkeys(bar.owner for lane in lanes.values() for bar in lane.bars)
    colours = {owner: f"o{number % _COLOURS}" for number, owner in enumerate(owners)}
    drawn = "\n".join(
        _draw(key, lane, scale, colours=colours, summary=summary, name=name) for key, lane in lanes.items()
    )
    told = "".join(
        f"<li{_FAULT if line.startswith(_FAULTS) else ''}>{_safe(line)}</li>" for line in summary_lines(summary, name)
    )
    template = resources.files("incumbent.local").joinpath("timeline.html").read_text("utf-8")
    parts = {
        "TITLE": _safe(title),
        "VERDICT": "good" if summary.good else "bad",
        "SUMMARY": told,
        "AXIS": "".join(scale.ticks()),
        "LANES": drawn or "<p>No fact was told.</p>",
    }
    before, *rest = template.split("{{")
    return before + "".join(parts[each.partition("}}")[0]] + each.partition("}}")[2] for each in rest)


class _Scale:
    """Turns times into percentages of the width."""

    def __init__(self, start_ms: float, span_ms: float) -> None:
        self.start_ms = start_ms
        self.span_ms = span_ms

    def at(self, t_ms: float) -> str:
        """A time's place; what never ended goes on to the right edge."""
        return f"{2 + 96 * min(1, max(0, (t_ms - self.start_ms) / self.span_ms)):.3f}%"

    def width(self, start_ms: float, end_ms: float) -> str:
        """The width between two times."""
        return f"{96 * (min(end_ms, self.start_ms + self.span_ms) - start_ms) / self.span_ms:.3f}%"

    def ticks(self) -> Iterator[str]:
        """The axis: some round times."""
        rough = self.span_ms / _TICKS
        step = 10 ** math.floor(math.log10(rough))
        step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= rough)
        for number in range(math.floor(self.span_ms / step) + 1):
            part = number * step / self.span_ms
            anchor = "start" if part < _EDGE else "end" if part > 1 - _EDGE else "middle"
            x = self.at(self.start_ms + number * step)
            yield f'<text x="{x}" y="12" text-anchor="{anchor}">{_time(number * step)}</text>'


def _lanes(facts: Sequence[Fact], answers: Sequence[Answer], name: Callable[[str], str]) -> dict[str, _Lane]:
    lanes: dict[str, _Lane] = defaultdict(_Lane)
    keys: dict[str, str] = {}
    for fact in facts:
        if not fact.key:
            continue
        lane = lanes[fact.key]
        keys.setdefault(fact.request_id, fact.key)
        if fact.fact in _ARRIVALS and fact.message_id:
            lane.arrivals.setdefault(fact.message_id, fact)
        if fact.fact in _MARKS:
            kind, glyph, words = _MARKS[fact.fact]
            told = f"{words}: {', '.join(fact.message_ids) or name(fact.request_id)} {fact.error}".strip()
            lane.marks.append((fact.t_ms, kind, glyph, told))
    for answer in answers:
        if answer.told.startswith(_ENDED) and answer.request_id in keys:
            told = f"{name(answer.request_id)}: {answer.told}"
            lanes[keys[answer.request_id]].marks.append((answer.ended_at_ms, "fault", "✝", told))
    _add_bars(lanes, facts, answers)
    return dict(lanes)


def _add_bars(lanes: Mapping[str, _Lane], facts: Sequence[Fact], answers: Sequence[Answer]) -> None:
    told = {(fact.key, fact.owner, fact.t_ms): fact for fact in facts if fact.fact in {"run_started", "run_ended"}}
    all_runs = runs(facts, answers)
    overlapping = {id(run) for pair in overlaps(all_runs) for run in pair}
    for run in all_runs:
        ended = told.get((run.key, run.owner, run.ended_at_ms))
        about = ended or told[run.key, run.owner, run.started_at_ms]
        bar = _Bar(
            owner=run.owner,
            start_ms=run.started_at_ms,
            end_ms=run.ended_at_ms,
            messages=about.message_ids,
            overlaps=id(run) in overlapping,
        )
        if ended is not None and ended.fact == "run_ended":
            bar.outcome = ended.outcome
        lane = lanes[run.key]
        taken = {other.row for other in lane.bars if other.end_ms > bar.start_ms}
        bar.row = next(row for row in range(len(lane.bars) + 1) if row not in taken)
        lane.bars.append(bar)


def _draw(
    key: str, lane: _Lane, scale: _Scale, *, colours: Mapping[str, str], summary: Summary, name: Callable[[str], str]
) -> str:
    rows = 1 + max((bar.row for bar in lane.bars), default=0)
    shapes: list[str] = []
    handled_by = {message: bar for bar in reversed(lane.bars) for message in bar.messages}
    for message, fact in lane.arrivals.items():
        bar = handled_by.get(message)
        kind = "fault" if message in summary.lost or message in summary.handled_twice else "arrival"
        x = scale.at(fact.t_ms)
        if bar is not None:
            to_x, to_y = scale.at(max(bar.start_ms, fact.t_ms)), _TOP + bar.row * _ROW
            shapes.append(f'<line class="joins" x1="{x}" y1="{_DOT_Y}" x2="{to_x}" y2="{to_y}"/>')
        what = f"{message}: {fact.fact} {_time(fact.t_ms - scale.start_ms)} by {name(fact.request_id)}"
        said = what + (" - LOST" if message in summary.lost else " - TWICE" if kind == "fault" else "")
        shapes.append(_shape(f'circle class="{kind}" cx="{x}" cy="{_DOT_Y}" r="5"', "circle", said))
    for bar in lane.bars:
        kind = "overlap" if bar.overlaps else "lostrun" if bar.outcome == "lost" else ""
        y = _TOP + bar.row * _ROW
        end_ms = min(bar.end_ms, scale.start_ms + scale.span_ms)
        said = (
            f"{name(request_of(bar.owner) or bar.owner)}: {bar.outcome} {', '.join(bar.messages)}, from "
            f"{_time(bar.start_ms - scale.start_ms)} for {_time(end_ms - bar.start_ms)}"
            + (" - OVERLAPS another run" if bar.overlaps else "")
        )
        place = f'x="{scale.at(bar.start_ms)}" y="{y}" width="{scale.width(bar.start_ms, bar.end_ms)}" height="{_BAR}"'
        shapes.append(_shape(f'rect class="run {colours[bar.owner]} {kind}" {place} rx="3"', "rect", said))
    for t_ms, kind, glyph, words in lane.marks:
        said = f"{words}, at {_time(t_ms - scale.start_ms)}"
        place = f'x="{scale.at(t_ms)}" y="{_TOP + rows * _ROW + 8}" text-anchor="middle"'
        shapes.append(_shape(f'text class="mark {kind}" {place}', "text", said, glyph))
    height = _TOP + rows * _ROW + 14
    faulty = {*summary.lost, *summary.handled_twice}
    is_bad = any(bar.overlaps for bar in lane.bars) or not faulty.isdisjoint(lane.arrivals)
    return (
        f'<section class="{"bad" if is_bad else ""}"><h2>{_safe(thread_of(key) or key)}</h2>'
        f'<svg width="100%" height="{height}" role="img">{"".join(shapes)}</svg></section>'
    )


def _shape(opening: str, tag: str, said: str, text: str = "") -> str:
    return f'<{opening} data-fact="{_safe(said)}" tabindex="0"><title>{_safe(said)}</title>{text}</{tag}>'


def _time(ms: float) -> str:
    return f"{ms / _SECOND_MS:.4g} s" if ms >= _SECOND_MS else f"{ms:.0f} ms"


def _safe(text: str) -> str:
    return escape(printable(text, keep="\\"), quote=True)
