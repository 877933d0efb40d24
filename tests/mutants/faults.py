"""The list: what is broken, where, and which tests must notice."""

from dataclasses import dataclass

MEMORY = "tests/conformance/test_memory.py"
VALKEY = "tests/conformance/test_redis.py::TestStandalone"
REDIS = "tests/unit/test_redis_provider.py"
MOTO = "tests/conformance/test_dynamodb.py::TestMoto"
DYNAMODB = "tests/unit/test_dynamodb_provider.py"
INTERLEAVINGS = "tests/interleavings/test_interleavings.py"
RULES = "tests/unit/test_rules.py"
RUNS = "tests/unit/test_runs.py"
HEARTBEAT = "tests/unit/test_heartbeat.py"
PACEMAKER = "tests/unit/test_pacemaker.py"

RULES_PY = "rules.py"
LUA = "providers/redis/scripts/"
CHANGE, QUICK = "providers/dynamodb/change.py", "providers/dynamodb/quick.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: in ``file`` of the package, ``old`` (which stands there once) becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    # --- the rules, by the names of the protocol's rules
    Mutant(
        "fence not bumped by a grant (R7)",
        RULES_PY,
        "fence=max(state.fence + 1, now_ms * 1_000),",
        "fence=max(state.fence, now_ms * 1_000),",
        (MEMORY, RULES),
    ),
    Mutant(
        "fence behind the clock (R7)",
        RULES_PY,
        "fence=max(state.fence + 1, now_ms * 1_000),",
        "fence=state.fence + 1,",
        (MEMORY, RULES),
    ),
    Mutant(
        "strangers' expiry by <= (R3)",
        RULES_PY,
        "return state.owner is not None and now_ms < state.expires_ms + skew_ms",
        "return state.owner is not None and now_ms <= state.expires_ms + skew_ms",
        (MEMORY, RULES),
    ),
    Mutant(
        "owner's expiry by <= (R3)",
        RULES_PY,
        "return state.owner == owner and now_ms < state.expires_ms and (",
        "return state.owner == owner and now_ms <= state.expires_ms and (",
        (MEMORY, RULES),
    ),
    Mutant(
        "noshort: a renewal may shorten (R4)",
        RULES_PY,
        "    renewed = replace(state, expires_ms=max(state.expires_ms, now_ms + ttl_ms))",
        "    renewed = replace(state, expires_ms=now_ms + ttl_ms)",
        (MEMORY, RULES),
    ),
    Mutant(
        "the fence of the tenure is not compared (R2)",
        RULES_PY,
        " and (fence is None or fence == state.fence)",
        "",
        (RULES,),
    ),
    Mutant(
        "by: a repeated claim does not know its own message (R8)",
        RULES_PY,
        "            if stored.claimed_by == owner:\n                return promised",
        "            if stored.claimed_by == owner + '?':\n                return promised",
        (MEMORY,),
    ),
    Mutant(
        "dupclaim: a waiting id on a free key is called a duplicate (M1)",
        RULES_PY,
        "        if live:  # (3) it waits or runs: promised before the caller is told so (M3)",
        "        if True:  # (3)",
        (MEMORY,),
    ),
    Mutant(
        "promise: a duplicate is answered for and not marked (M3)",
        RULES_PY,
        "            promised = _with_target(_change(state, [message.id], lambda m: replace(m, promised=True)), origin)",
        "            promised = state",
        (MEMORY,),
    ),
    Mutant(
        "promised messages leave with their failed run (M3)",
        RULES_PY,
        "        elif message.id in drops and not message.promised:",
        "        elif message.id in drops:",
        (MEMORY,),
    ),
    Mutant(
        "evidence: a repeated settle does not look for its traces (R9)",
        RULES_PY,
        "        if any(trace.id in finished and trace.fence == fence for trace in state.ended):",
        "        if False:",
        (RULES,),
    ),
    Mutant(
        "evidence_unknown: not knowing is called a loss (R9)",
        RULES_PY,
        '        return "unknown"\n    return "lost"',
        '        return "lost"\n    return "lost"',
        (RULES,),
    ),
    Mutant(
        "tomb: a failed claim leaves no trace (M3)",
        RULES_PY,
        '        if trace.outcome == "failed" and trace.claimed_by == owner and',
        '        if trace.outcome == "never" and trace.claimed_by == owner and',
        (MEMORY,),
    ),
    Mutant(
        "dlstored: the deadline does not regard what the store reports (R12)",
        "clock.py",
        "    lives_ms = ttl_ms if expires_in_ms is None else min(ttl_ms, expires_in_ms)",
        "    lives_ms = ttl_ms",
        ("tests/unit/test_clock.py",),
    ),
    Mutant(
        "no margin before the end of the lease (R12)",
        "clock.py",
        "    return sent.plus(lives_ms - margin_ms(ttl_ms))",
        "    return sent.plus(lives_ms)",
        ("tests/unit/test_clock.py",),
    ),
    Mutant(
        "ticket: it can be redeemed by anybody, again and again (M9)",
        RULES_PY,
        "        redeems = ticket is not None and state.owner == ticket  # M9",
        "        redeems = ticket is not None",
        (MEMORY,),
    ),
    Mutant(
        "handnocount: what is handed over counts as delivered (M6)",
        RULES_PY,
        "    if as_ticket:\n        return new, _granted(new, now_ms)",
        "    if as_ticket:\n        new = _deliver(new, now_ms, policy.max_attempts)\n        return new, _granted(new, now_ms)",
        (MEMORY,),
    ),
    Mutant(
        "fullown: a full mailbox refuses who could empty it (M7)",
        RULES_PY,
        "    if bounded and not _has_work(_note(state, policy), now_ms, policy, skew_ms):",
        "    if len(state.mail) >= policy.max_pending:",
        (MEMORY,),
    ),
    Mutant(
        "deaddup: a dead id is stored again (M5)",
        RULES_PY,
        '        ended=(*state.ended, _trace(state, message, "dead", now_ms)),',
        "        ended=state.ended,",
        (MEMORY,),
    ),
    Mutant(
        "a settle frees the key whatever waits (M2)",
        RULES_PY,
        "    if successor is None or not due(state, now_ms):",
        "    if True:",
        (MEMORY,),
    ),
    Mutant(
        "a delivery is not counted (M6)",
        RULES_PY,
        "replace(message, attempts=message.attempts + 1, delivered_fence=state.fence)",
        "replace(message, delivered_fence=state.fence)",
        (MEMORY,),
    ),
    Mutant(
        "handled ids are never forgotten (M5, H59)",
        RULES_PY,
        "    if len(kept) > REMEMBERED:\n",
        "    if len(kept) > 1_000_000:\n",
        (MEMORY,),
    ),
    Mutant(
        "a newer message goes ahead of one that failed (M4)",
        RULES_PY,
        "        if message.attempts:\n            break",
        "        if message.attempts:\n            continue",
        (MEMORY,),
    ),
    # --- Redis: clauses of the scripts
    Mutant(
        "Lua: the release does not compare the owner (R5)",
        LUA + "release.lua",
        "if lease.holder ~= ARGV[1] then return sure('kept') end",
        "",
        (VALKEY,),
    ),
    Mutant(
        "Lua: the fence does not grow (R7)",
        LUA + "state.lua",
        "math.max(state.fence + 1, now_us)",
        "math.max(state.fence, 1)",
        (VALKEY,),
    ),
    Mutant(
        "Lua: the fence is printed as Lua prints numbers (H30)",
        LUA + "state.lua",
        "    return string.format('%.0f', number)",
        "    return tostring(number)",
        (VALKEY,),
    ),
    Mutant(
        "Lua: a renewal may shorten (R4)",
        LUA + "state.lua",
        "    if lease.pttl < tonumber(ttl) then",
        "    if true then",
        (VALKEY,),
    ),
    Mutant(
        "Lua: the state of waiting messages expires (section Stores)",
        LUA + "state.lua",
        "    if state.stored > 0 then\n        call('SET', STATE, cmsgpack.pack(record))",
        "    if false then\n        call('SET', STATE, cmsgpack.pack(record))",
        (REDIS,),
    ),
    Mutant(
        "Lua: a settle that is too late settles (R3)",
        LUA + "settle.lua",
        "if not lease.owned_by(owner, fence) then",
        "if not lease.holder then",
        (VALKEY,),
    ),
    Mutant(
        "Lua: the window of ids is not looked at (M5)",
        LUA + "claim.lua",
        "    if of_id then -- (2)",
        "    if false then -- (2)",
        (VALKEY,),
    ),
    Mutant(
        "Lua: the transfer works for anybody (R6)",
        LUA + "transfer.lua",
        "if lease.holder == owner then",
        "if lease.holder then",
        (VALKEY,),
    ),
    # --- DynamoDB: clauses of the conditions
    Mutant(
        "append_any: routing wants the mailbox of a live holder only (M1)",
        QUICK,
        '    update.when_absent("mail", most - 1)\n    update.set(VERSION, "v")\n',
        '    update.when_absent("mail", most - 1)\n    update.set(VERSION, "v")\n'
        "    update.when(f\"{update.name('expires_at')} > :now\")\n",
        (DYNAMODB,),
    ),
    Mutant(
        "the strangers' margin is left out (R3, H15)",
        QUICK,
        '        ":free": _number(now_ms - skew_ms),\n',
        '        ":free": _number(now_ms),\n',
        (MOTO, DYNAMODB),
    ),
    Mutant(
        "an id is stored twice (M5)",
        QUICK,
        '    for name in ("ids", "recent", PAST["handled"], PAST["dead"]):\n',
        '    for name in (PAST["handled"], PAST["dead"]):\n',
        (MOTO,),
    ),
    Mutant(
        "the release does not compare the owner (R5)",
        QUICK,
        "    update.when(f\"{update.name('lease_owner')} = :owner\")\n",
        "    update.when(f\"{update.name('lease_owner')} <> :owner OR {update.name('lease_owner')} = :owner\")\n",
        (MOTO,),
    ),
    Mutant(
        "a late copy of a renewal shortens (R4, H51)",
        QUICK,
        "    update.when(f\"{update.name('expires_at')} <= :until\")\n",
        "",
        (MOTO, DYNAMODB),
    ),
    Mutant(
        "the fence of a grant is the last one (R7)",
        QUICK,
        ":clock) + {update.value(1)}",
        ":clock) + {update.value(0)}",
        (MOTO,),
    ),
    Mutant(
        "a close does not look whether something came (M2)",
        CHANGE,
        "        if self._added or self._empties or self._ends_a_run or closes:\n",
        "        if self._added or self._empties or self._ends_a_run:\n",
        (DYNAMODB, MOTO),
    ),
    Mutant(
        "an update that removes by place does not look whether the list was edited (M4)",
        CHANGE,
        "        if self.new.ended != self._old.ended or ends or (self._mail_changed and not takes_over):\n",
        "        if False:\n",
        (DYNAMODB,),
    ),
    Mutant(
        "a duplicate that is marked late is told of the owner that was seen before (M3)",
        "providers/dynamodb/claiming.py",
        "                    answer = replace(answer, said=None)\n",
        "                    pass\n",
        (DYNAMODB,),
    ),
    # --- DynamoDB: what only another request, between two of one call, brings to light
    Mutant(
        "the list is removed as a whole, whatever has come to it (M3)",
        CHANGE,
        "        if self._added or self._empties or self._ends_a_run or closes:\n",
        "        if self._added or self._ends_a_run or closes:\n",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a message hides behind the pause of another (M8)",
        CHANGE,
        "(self.closes or self._hides(now_ms))",
        "self.closes",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a message is appended where only a pause is left (M8)",
        QUICK,
        '    update.when(f"attribute_exists({owned}) OR {shows}")\n',
        "",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a freed record keeps no TTL, as its last message went meanwhile",
        CHANGE,
        '            update.when_there("mail", 0)\n\n    def _when_as_it_was',
        "            pass\n\n    def _when_as_it_was",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a release leaves messages in a record that TTL deletes (M8)",
        QUICK,
        '    update.when_absent("mail", 0)\n    _free_key(update)\n',
        "    _free_key(update)\n",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "an owner's change does not look whether the mailbox was edited (M6)",
        CHANGE,
        "(self._mail_changed and not takes_over)",
        "(self._mail_changed and takes_over)",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a letter that is put back beside messages that pause is no orphan (M8)",
        CHANGE,
        "        elif self.beside and new.owner is None and",
        "        elif self.beside and new.owner is not None and",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "two callers that bury a message write one item, and the refused one deletes it (M6)",
        "providers/dynamodb/steps.py",
        "        names = [secrets.token_hex(8) for _ in letters]\n",
        '        names = ["0" * 16 for _ in letters]\n',
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a letter is put back again by who saw it before (R8)",
        "providers/dynamodb/archive.py",
        "        if letters[-1].name in _spent(record):\n",
        "        if False:\n",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a spent letter is forgotten before its item is gone (R8)",
        "providers/dynamodb/archive.py",
        "        steps.table.delete(call, letter.sk)\n        body =",
        "        body =",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a redrive does not notice a purge that has begun and ended meanwhile (R8)",
        "providers/dynamodb/archive.py",
        '        update.add(1, "edits")\n        _spend',
        "        _spend",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a large body is deleted while the record names it (M3)",
        "providers/dynamodb/steps.py",
        "(message.id, message.body) not in needed:",
        "(message.id, message.body) in needed:",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "the quick settle does not look whether something came (M2)",
        QUICK,
        '    update.when_absent("mail", 1)\n',
        "",
        (DYNAMODB, INTERLEAVINGS),
    ),
    Mutant(
        "the quick settle drops what was promised meanwhile (M3)",
        QUICK,
        '        update.when_absent("mail", 0, "promised")\n',
        "        pass\n",
        (DYNAMODB, INTERLEAVINGS),
    ),
    Mutant(
        "ids are forgotten when their traces move into a page (M5)",
        "providers/dynamodb/traces.py",
        'return (before + "".join(map(short, names)))',
        "return before",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "traces are moved into a page that is not written (M5)",
        "providers/dynamodb/steps.py",
        "        if moved:\n",
        "        if False:\n",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "a page tells of messages whose settle may be refused (M3)",
        "providers/dynamodb/steps.py",
        "        return tuple(trace for trace in stays if trace in here)\n",
        "        return stays\n",
        (INTERLEAVINGS,),
    ),
    Mutant(
        "pages are not read where the short digests tell of an id (M5)",
        "providers/dynamodb/claiming.py",
        '            answer = self.steps.remember(self.call, answer, self.message_id or "", self.owner)\n',
        "",
        (MOTO,),
    ),
    # --- above the stores
    Mutant(
        "a thread that could not be started is taken for one that keeps the time",
        "pacemaker.py",
        "        except BaseException:\n            self._keeper = None\n            raise\n",
        "        except BaseException:\n            raise\n",
        (PACEMAKER,),
    ),
    Mutant(
        "a refusal that comes when the run is over is a loss",
        "lease.py",
        "                if not self._ended:  # else it was released meanwhile, and not lost\n",
        "                if True:\n",
        (RUNS,),
    ),
    Mutant(
        "a renewal may be in flight during the settle (H11)",
        "pacemaker.py",
        "            flight.landed.wait()",
        "            pass",
        (HEARTBEAT, PACEMAKER),
    ),
    Mutant(
        "a renewal that is answered after the deadline revives (R3)",
        "heartbeat.py",
        "            late = self._clock.now().until(self._held_until) <= 0",
        "            late = False",
        (HEARTBEAT,),
    ),
    Mutant(
        "one failed renewal is a loss (H9)",
        "heartbeat.py",
        "            self._on_error(error)\n",
        '            self.lose(self._make_lost("one renewal failed"))\n',
        (HEARTBEAT,),
    ),
    Mutant(
        "renewals go on after the invocation's end (M13)",
        "heartbeat.py",
        "        return self._ends is not None and self._clock.now().until(self._ends) <= 0",
        "        return False",
        (HEARTBEAT,),
    ),
    Mutant(
        "a claim that was answered too late starts a run (R12)",
        "invocation.py",
        "            lease.assert_held()  # a claim that was answered too late starts nothing (R12)\n",
        "",
        (RUNS,),
    ),
    Mutant(
        "credentials are stored (H61)",
        "credentials.py",
        "    return value is not None and (",
        "    return value is None and (",
        ("tests/unit/test_sources.py", "tests/unit/test_sources_shapes.py"),
    ),
)
