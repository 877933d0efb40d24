"""The changes that no test can notice, each with its reason: random faults leave them out."""

from dataclasses import dataclass
from fnmatch import fnmatch

from tests.mutants.changes import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A kind of change: in files like ``file``, on lines that hold ``line``, of code that holds ``old``."""

    file: str
    line: str
    old: str = ""
    new: str = ""
    why: str


# What stands behind the ``or`` is for the type checker: the value is there whenever that line is reached, or unused.
FOR_TYPES = (
    ("ending.py", "deferred = [*deferred, own.id", 'own.id or ""'),
    ("*/dynamodb/provider.py", "text=text", 'text or ""'),
    ("*/steps.py", "window_ms or 0)", "window_ms or 0"),
    ("*/quick.py", 'values[":ticket"]', 'ticket or ""'),
    ("rules.py", "over = TenureEnd(", 'state.owner or ""'),
    ("rules.py", "end.successor == successor", 'end.successor or ""'),
    ("*/shared.py", "(results or {})", "results or {}"),
)

# Attributes of DynamoDB's items that an expression may name as they are.
NOT_RESERVED = ("lease", "orphan_since", "head", "not_before", "ended", "mail")

# Two ways to the same answer: which of them is taken there does not matter.
EITHER_WAY = (
    ("clock.py", "mono_ms < wall_ms", "<", "<="),
    (
        "event_reader.py",
        "message_id.isascii() and len(message_id) <=",
        "len(message_id) <= MAX",
        "(len(message_id) < MAX",
    ),
    ("pacemaker.py", "due.mono_ms < self._sleeps_until.mono_ms", "due.mono_ms < self", "(due.mono_ms <= self"),
    ("sources.py", 'arn.startswith("arn:") and _EXECUTION', " and ", "(isinstance(arn, str) and _EXECUTION"),
    ("operations.py", "_letters(store, key, keyspace), limit + 1", "1", "2"),
    ("sources.py", "if len(found) > 1", "len(found) > 1", "(len(found) >= 1"),
    ("validation.py", "value.isascii() and len(value) <=", "len(value) <= MAX", "(len(value) < MAX"),
    ("validation.py", "if len(named) > 1 and", "len(named) > 1", "(len(named) >= 1)"),
    *(
        ("validation.py", "deep = len(stored) > 2", " > ", new)
        for new in ("(len(stored) >= 2", ">= MAX_DEPTH)", "(len(stored) > 2 * MAX_DEPTH)", "(stored.count('[')")
    ),
    ("lease.py", "return self.messages[0].id == message_id or", " or ", "(message_id in "),
    (
        "heartbeat.py",
        "if held_until.mono_ms > self._held_until",
        "held_until.mono_ms > self",
        "(held_until.mono_ms >= ",
    ),
    ("validation.py", "if text.isascii() and len(text) <= most", "len(text) <= most", "(len(text) < most"),
    ("rules.py", "if first.due_ms <= now_ms and", "first.due_ms <= now_ms", "(first.due_ms < now_ms)"),
    ("rules.py", "earlier = due_ms is not None and", "due_ms is not None and", "(known_ms is None or "),
    ("*/unreadable.py", "if len(given) == len(answer", "len(", "its first argument"),
)

# How much is asked for, looked at or shown at once, and how long a pause is: each value works.
TUNING = (
    ("operations.py", "EVERYTHING = "),
    ("heartbeat.py", "_RETRY_MS = "),
    ("later.py", "_SHORT_MS = "),
    ("powertools.py", "_MAX_FACTS = "),
    ("sweeper.py", "LOOK_AHEAD = "),
    ("validation.py", "_MAX_SHOWN = "),
    ("validation.py", "_BEGINNING_BYTES = "),
    ("retry.py", "PAUSE_MS = "),
    *((f"*/dynamodb/{file}.py", "_AT_ONCE = ") for file in ("archive", "control")),
    *(("*/dynamodb/table.py", line) for line in ("_BATCH = ", "_MAX_BATCHES = ", "_PAUSE_MS = ")),
    ("*/dynamodb/steps.py", "_PAGES = "),
    ("*/redis/server.py", "SCAN_COUNT = "),
    ("*/redis/connections.py", "STALE_MS = "),
)

SURVIVORS: tuple[Survivor, ...] = (
    Survivor(
        file="calls.py",
        line="comes_again: bool = False",
        why="only an own message asks, and the reader of events says it of each",
    ),
    Survivor(
        file="sweeper.py",
        line="due_ms: int = 0",
        why="`again` sets it before anything reads it",
    ),
    *(
        Survivor(file=file, line=line, old=old, new=f"({old.partition(' or ')[0]})", why="for the type checker")
        for file, line, old in FOR_TYPES
    ),
    *(
        Survivor(file=file, line=line, old=old, new=new, why="both ways lead to the same answer")
        for file, line, old, new in EITHER_WAY
    ),
    *(Survivor(file=file, line=line, why="it only tunes: each value works") for file, line in TUNING),
    *(
        Survivor(file="*/dynamodb/*.py", line=old, old=old, new="its first argument", why="a name that is not reserved")
        for old in (f'update.name("{name}")' for name in NOT_RESERVED)
    ),
    Survivor(
        file="validation.py",
        line='text, size, escaped = "", 0, False',
        why="it is set before it is read, and a search for halves of surrogate pairs finds none",
    ),
    Survivor(
        file="*/redis/connections.py",
        line="zip(map(len, raw), raw, strict=True)",
        new="without strict=",
        why="each word has one length",
    ),
    Survivor(
        file="frozen.py",
        line="_is_frozen(made)",
        new="its first argument",
        why="values that may change can be made as frozen ones are: it only takes longer",
    ),
    Survivor(
        file="waiting.py",
        line="if settings.wait_ms is None or message is None",
        old=" or ",
        new="(message is None or",
        why="for the type checker: its caller has looked",
    ),
    *(
        Survivor(
            file="*",
            line=line,
            old="frozenset(",
            new="its first argument",
            why="the same values, which no code changes",
        )
        for line in ("frozenset({", "_PARTS = frozenset(", "_WHOLE = frozenset(", "_PASSING = frozenset(")
    ),
    *(
        Survivor(
            file="validation.py",
            line=line,
            old=old,
            new="its first argument",
            why="what is not read at once is read by the other way, which takes longer",
        )
        for line, old in (("event, end = _DECODER", "_DECODER.raw_decode"), ("if end == len(text)", "len("))
    ),
    *(
        Survivor(file="own_message.py", line="marshal.dumps(stored, 0)", old="0", new=new, why=why)
        for new, why in (
            ("its first argument", "where no bytes are equal, the comparisons that follow say the same"),
            ("1", "a version of marshal, whose bytes are equal as seldom"),
        )
    ),
    Survivor(
        file="progress.py",
        line="return 0",
        old="0",
        new="1",
        why="an invocation without an end: no caller compares with that",
    ),
    Survivor(
        file="credentials.py",
        line="continue",
        why="to ask for the form of a text or a number changes nothing: it only takes time",
    ),
    Survivor(
        file="*/ending.lua",
        line="local place = tonumber(call('ZREVRANGE', DEAD, 0, 0, 'WITHSCORES')[2] or 0)",
        old="0",
        new="1",
        why="places in the order are compared, so that it does not matter where they begin",
    ),
    Survivor(
        file="*/claim_alone.lua",
        line="string.find(record[TRACES], ARGV[",
        old="1",
        new="2",
        why="an id never stands at the beginning of what is packed",
    ),
    Survivor(
        file="*/record.lua",
        line="local record = { FORMAT, '', 0, 0, 0, 0, '', '',",
        old="0",
        new="1",
        why="times in 1970, and places that are only compared",
    ),
    Survivor(
        file="*/state.lua",
        line="lease.ours = true",
        old="true",
        new="false",
        why="afterwards only a claim of a lease without an end asks, whose fence then grows twice",
    ),
    Survivor(
        file="*/claim.lua",
        line="if state.traced > 0 or",
        old=">",
        new=">=",
        why="it only looks for traces where there are none",
    ),
    *(
        Survivor(
            file="*/settling.py", line="inline > 1 and", old="inline > 1", new=new, why="only tests have one trace"
        )
        for new in ("(inline >= 1)", "(self.fence is not None and self.fence %")
    ),
    Survivor(
        file="*/dynamodb/steps.py",
        line="late: bool = False",
        why="only the rule of a take asks, and it is always told",
    ),
    *(
        Survivor(file="*/dynamodb/*.py", line="strict=True)", old=old, new=new, why="both are as long")
        for old, new in (("zip(", "without strict="), ("True", "False"))
    ),
    Survivor(file="*", line=" = maker(", new="its first argument", why="the class makes the same, but slower"),
    Survivor(
        file="rules.py",
        line="new = _grant(state, owner, now_ms, ttl_ms, skew_ms, origin=origin, policy=known",
        new="without max_attempts=",
        why="then it is delivered afterwards, which takes longer",
    ),
    *(
        Survivor(file="*/dynamodb/steps.py", line=line, old="0", new="1", why="only of which kind it is counts")
        for line in ("GRANTED = ", "ACCEPTED = ", "FREED = ")
    ),
    Survivor(
        file="*/table.py",
        line='.get("HTTPStatusCode", 0)',
        old="0",
        new="1",
        why="each is below 500",
    ),
    Survivor(
        file="*/dynamodb/control.py",
        line="now_ms, events=False, skew_ms",
        old="False",
        new="True",
        why="each event is null already",
    ),
    Survivor(
        file="*/control.py",
        line="raise AssertionError  # shown_again ends it",
        why="no call comes there",
    ),
    Survivor(
        file="*/held.lua",
        line="if #moved > 0 then call('ZADD'",
        old="0",
        new="1",
        why="it holds pairs",
    ),
    Survivor(
        file="*/held.lua",
        line="message.given, message.died, message.place, message.due = true, false, was.place, was.due",
        old="false",
        new="true",
        why="afterwards only the burial asks who died, for messages of which there are none then",
    ),
    *(
        Survivor(file="*/held.lua", line=line, old="<", new="<=", why="the two differ: the line says so before")
        for line in ("if one.place ~= other.place then", "if first ~= second then")
    ),
)


def why_it_survives(file: str, line: str, change: Change) -> str | None:
    """Say why no test can notice a change of this line; ``None`` where one must."""
    for known in SURVIVORS:
        new = change.says or change.new
        if fnmatch(file, known.file) and known.line in line and known.old in change.old and known.new in new:
            return known.why
    return None
