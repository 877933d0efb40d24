"""The quick updates: each is sent without having read the record, so its condition contains all that the rule checks.

If one is refused, the refusal shows the record, the rules decide on it, and ``change`` writes their decision.

The texts depend on few things, and are built once for each combination; a slot stands for each value that a call
brings itself.
"""

from functools import cache

from incumbent.providers.dynamodb import item
from incumbent.providers.dynamodb.attributes import VERSION, Typed, seconds, typed
from incumbent.providers.dynamodb.expression import ANY, Request, Update
from incumbent.providers.dynamodb.names import mark, owner_digest, short
from incumbent.providers.dynamodb.traces import trace_text
from incumbent.rules import Ended, Outcome, Stored
from incumbent.values import Origin, Policy

_DESCRIBED = tuple((name, f":{name}") for name in item.DESCRIBED)


def _text(value: str) -> Typed:
    return {"S": str(value)}


def _number(value: int) -> Typed:
    return {"N": str(value)}


# --- the lease


def acquire(owner: str, *, ttl_ms: int, now_ms: int, skew_ms: int) -> Request:
    """R2: free or expired, by the strangers' edge, not held (M15), and no message died with its run (M6)."""
    return _acquire().fill(_granting(owner, ttl_ms, now_ms, skew_ms))


@cache
def _acquire() -> Request:
    update = Update()
    _when_ours(update)
    update.when(_free(update))
    update.when_absent("not_before")
    _when_head_is_fresh(update)
    _grant(update)
    return update.request("UPDATED_NEW")


def renew(owner: str, fence: int | None, *, ttl_ms: int, now_ms: int, shows: bool, note: str | None = None) -> Request:
    """Extend a live lease, and never bring its expiry forward (R4). ``shows``: answer with the record."""
    values = {":until": _number(now_ms + ttl_ms)}
    if note is not None:
        values[":note"] = _text(note)
    request = _renew(fenced=fence is not None, shows=shows, notes=note is not None)
    return request.fill(values | _holding(owner, fence, now_ms))


@cache
def _renew(*, fenced: bool, shows: bool, notes: bool) -> Request:
    update = Update()
    _when_held(update, fenced=fenced)
    update.when(f"{update.name('lease', 'expires')} <= :until")
    update.set_to(":until", "lease", "expires")
    if notes:
        update.set_to(":note", "lease", "note")
    return update.request("ALL_NEW" if shows else "NONE")


def release(owner: str, *, now_ms: int) -> Request:
    """Free the key (R5) if no message is stored and no hold is, since then TTL may delete the record."""
    return _release().fill(_holding(owner, None, now_ms) | _freeing("released", owner, now_ms))


@cache
def _release() -> Request:
    update = Update()
    _when_held(update, fenced=False)
    update.when_absent("mail", 0)
    _free_key(update)
    return update.request("NONE")


def transfer(owner: str, successor: str, *, ttl_ms: int, now_ms: int, skew_ms: int) -> Request:
    """R6: from a live owner to its successor, with a new fence, if there is no run that ends with it (M6)."""
    return _transfer().fill(
        {
            **_holding(owner, None, now_ms),
            ":left": _text(item.left_text("transferred", owner, successor)),
            ":lease": item.lease(successor, now_ms + ttl_ms, now_ms),
            ":edge": _number(now_ms + ttl_ms + skew_ms),
        }
    )


@cache
def _transfer() -> Request:
    update = Update()
    _when_held(update, fenced=False)
    _when_head_is_fresh(update)
    following = f"{update.name('fence')} + {update.value(1)}"
    update.set_to(following, "left_fence")
    update.set_to(following, "fence")
    for name, slot in (("left", ":left"), ("lease", ":lease"), ("orphan_since", ":edge")):
        update.set_to(slot, name)
    return update.request("NONE")


# --- the mailbox


def claim(
    owner: str,
    message: Stored | None,
    *,
    shard: str,
    policy: Policy,
    ticket: str | None,
    as_ticket: bool,
    origin: Origin | None,
    ttl_ms: int,
    now_ms: int,
    skew_ms: int,
) -> Request:
    """M1 on a free key with nothing odd: the id unknown, the head never delivered (M6), the key not held (M15).

    The head, which may be the message itself, is delivered in the same update. Without a message the key is taken only
    if one is stored, or from its ticket (M9).
    """
    redeems = ticket is not None and ticket != owner and message is None
    values: dict[str, Typed] = _granting(owner, ttl_ms, now_ms, skew_ms) | _described(origin, owner)
    values[":claim"] = _text(short(owner))
    if redeems:
        values[":ticket"] = _text(ticket or "")
    if message is not None:
        values |= _appending(message, shard)
    if not as_ticket:
        values[":policy"] = _text(item.policy_text(policy))
    return _claim(
        redeems=redeems,
        as_ticket=as_ticket,
        described=tuple(name for name, slot in _DESCRIBED if slot in values),
        most=0 if message is None else min(item.FEW, item.fitting(message)),
    ).fill(values, None if message is None else mark(message.id)[0])


@cache
def _claim(*, redeems: bool, as_ticket: bool, described: tuple[str, ...], most: int) -> Request:
    """``most`` is how many messages may be stored then (M7), and zero of a claim without a message."""
    update = Update()
    _when_ours(update)
    free = _free(update)
    if redeems:
        owned, until = update.name("lease", "holder"), update.name("lease", "expires")
        free = f"({free}) OR ({owned} = :ticket AND {until} > :free)"
    update.when(free)
    update.when_absent("not_before")
    _when_claim_has_not_failed(update)
    _when_head_is_fresh(update)
    if not as_ticket:
        update.set_to(_next_fence(update), "given")  # its first delivery
        update.set_to(":policy", "policy")
    _grant(update)
    for name in described:
        update.set_to(f":{name}", name)
    if not most:
        update.when_there("mail", 0)
        return update.request()
    update.when_absent("mail", most - 1)
    _append(update)
    return update.request("UPDATED_NEW")


def append(owner: str, message: Stored, *, shard: str, most: int, origin: Origin | None, now_ms: int) -> Request:
    """Store a message behind the holder of the key, or the last one (M1, case 5); the answer names it.

    ``most`` is how many messages may be stored then (M7). If the last owner has left messages that pause, the update is
    refused: the orphans' index would show this one only after the pause (M8). They pause only if the first of them
    does, or if the key is held: a held key without messages is in the index for the year 9999 (M15). Else the index has
    the moment at which the owner left, by its clock, which may be later than this request.
    """
    values = {":now": _number(now_ms), ":claim": _text(short(owner)), **_appending(message, shard)}
    if origin is not None and origin.target:
        described = _described(origin, owner)
        values |= {slot: value for slot, value in described.items() if slot in {":target", ":keyspace"}}
    request = _append_behind(most=most, target=":target" in values, keyspace=":keyspace" in values)
    return request.fill(values, mark(message.id)[0])


@cache
def _append_behind(*, most: int, target: bool, keyspace: bool) -> Request:
    update = Update()
    _when_ours(update)
    owned, since = update.name("lease"), update.name("orphan_since")
    head, held = update.name("head"), update.name("not_before")
    shows = f"(attribute_not_exists({head}) AND attribute_not_exists({held}))"
    update.when(f"attribute_exists({owned}) OR {shows} OR attribute_not_exists({since}) OR {since} <= :now")
    _when_claim_has_not_failed(update)
    update.when_absent("mail", most - 1)
    update.set(VERSION, "v")
    update.set_to(f"if_not_exists({since}, :now)", "orphan_since")
    update.remove("expires_on")
    if target:
        _offer(update, "target")
    if keyspace:
        _offer(update, "keyspace")
    _append(update)
    return update.request()


def promise(place: int, message_id: str, origin: Origin | None) -> Request:
    """Mark a message as promised, in the place where it was seen (M3)."""
    update = Update()
    _when_ours(update)
    update.when_is(message_id, "mail", place, "id")
    update.set(True, "mail", place, "promised")  # noqa: FBT003 - a value of the format
    update.add(1, "edits")
    if origin is None or not origin.target:
        return update.request()
    offered = {name: getattr(origin, name) for name in ("target", "keyspace") if getattr(origin, name)}
    for name in offered:
        _offer(update, name)
    return update.request().fill({f":{name}": _text(value) for name, value in offered.items()})


def settle(
    owner: str,
    message_id: str,
    outcome: Outcome,
    *,
    fence: int,
    policy: Policy,
    inline: int,
    now_ms: int,
) -> Request:
    """M2 where the only message is the one that is named, and its owner stored it itself: free the key.

    Its body is in the record, there is room for its trace among ``inline`` ones, and there is neither a mark (M16) nor
    a hold (M15). ``failed``: it is dropped, as it is not promised (M3).
    """
    trace = Ended(id=message_id, outcome=outcome, claimed_by=owner, fence=fence, at_ms=now_ms)
    values = {
        **_holding(owner, fence, now_ms),
        **_freeing("settled", owner, now_ms),
        ":id": _text(message_id),
        ":by": _text(owner_digest(owner)),
        ":trace": {"SS": [trace_text(trace)]},
        ":policy": _text(item.policy_text(policy)),
    }
    drops = outcome == "failed"
    if drops:
        known = short(message_id)
        values[":tombs"], values[":ids"] = {"SS": [short(owner)]}, {"SS": [known]}
        values[":shared"] = _text(item.shared(known))
    return _settle(drops=drops, inline=inline).fill(values)


@cache
def _settle(*, drops: bool, inline: int) -> Request:
    update = Update()
    _when_held(update, fenced=True)
    update.when(f"{update.name('mail', 0, 'id')} = :id")
    update.when(f"{update.name('mail', 0, 'by')} = :by")
    update.when_absent("mail", 0, "ref")
    update.when_absent("mail", 1)
    update.when_absent("lease", "stop")
    if drops:
        update.when_absent("mail", 0, "promised")
        update.when(f"NOT contains({update.name('known')}, :shared)")
    ended = update.name("ended")
    update.when(f"attribute_not_exists({ended}) OR size({ended}) < {update.value(inline)}")
    _free_key(update)
    update.when_absent("head")
    update.set_to(":policy", "policy")
    for name in ("mail", "given", "orphan_shard"):
        update.remove(name)
    update.add_to(":trace", "ended")
    if drops:  # another claim may store it: its id is not known any more
        update.add_to(":tombs", "tombs")
        update.delete_from(":ids", "known")
    return update.request("NONE")


# --- control


def stop(fence: int, reason: str, *, now_ms: int, skew_ms: int) -> Request:
    """Mark the tenure of the fence while it is live, as others see it (M16). The first reason stands."""
    reason_value = typed(item.stop_value(reason))
    return _stop().fill({":free": _number(now_ms - skew_ms), ":reason": reason_value, ":fence": _number(fence)})


@cache
def _stop() -> Request:
    update = Update()
    update.when_is(VERSION, "v")
    update.when(f"{update.name('lease', 'expires')} > :free")
    update.when(f"{update.name('fence')} = :fence")
    update.set_to(f"if_not_exists({update.name('lease', 'stop')}, :reason)", "lease", "stop")
    return update.request("NONE")


# --- their parts


def _when_ours(update: Update) -> None:
    """Add the condition that the item does not exist, or has this version (M12)."""
    update.when(f"attribute_not_exists({update.name('pk')}) OR {update.name('v')} = {update.value(VERSION)}")


def _free(update: Update) -> str:
    """Return the condition that the key is free for other callers (R3: expiry plus skew)."""
    return f"attribute_not_exists({update.name('lease')}) OR {update.name('lease', 'expires')} <= :free"


def _when_held(update: Update, *, fenced: bool) -> None:
    """Add the condition that the owner's lease is live (R3), in the tenure of the fence if it is known (R2)."""
    update.when_is(VERSION, "v")
    update.when(f"{update.name('lease', 'holder')} = :owner")
    update.when(f"{update.name('lease', 'expires')} > :now")
    if fenced:
        update.when(f"{update.name('fence')} = :fence")


def _holding(owner: str, fence: int | None, now_ms: int) -> dict[str, Typed]:
    found = {":owner": _text(owner), ":now": _number(now_ms)}
    if fence is not None:
        found[":fence"] = _number(fence)
    return found


def _when_head_is_fresh(update: Update) -> None:
    """M6: the head, if there is one, was never delivered and does not pause; so no message was given to the tenure.

    A tenure is given the first that is due, and a fresh head would be.
    """
    update.when_absent("given")


def _next_fence(update: Update) -> str:
    """Return the next fence: one more than the last, or the clock's microseconds if there is none (R7)."""
    return f"if_not_exists({update.name('fence')}, :clock) + {update.value(1)}"


def _grant(update: Update) -> None:
    update.set(VERSION, "v")
    update.set_to(_next_fence(update), "fence")
    update.set_to(":lease", "lease")
    update.set_to(":edge", "orphan_since")
    update.remove("expires_on")
    update.remove("left")  # an earlier tenure's: so the item is as small as can be while a message is in it


def _granting(owner: str, ttl_ms: int, now_ms: int, skew_ms: int) -> dict[str, Typed]:
    return {
        ":lease": item.lease(owner, now_ms + ttl_ms, now_ms),
        ":edge": _number(now_ms + ttl_ms + skew_ms),
        ":free": _number(now_ms - skew_ms),
        ":clock": _number(now_ms * 1_000),
    }


def _free_key(update: Update) -> None:
    """Free the key, which has no message and no hold: TTL may delete its record one day."""
    update.when_absent("not_before")
    update.set_to(":left", "left")
    update.set_to(":now", "orphan_since")
    update.set_to(":ttl", "expires_on")
    update.remove("lease")


def _freeing(how: str, owner: str, now_ms: int) -> dict[str, Typed]:
    return {":left": _text(item.left_text(how, owner, None, now_ms)), ":ttl": _number(seconds(now_ms) + item.IDLE_S)}


def _when_claim_has_not_failed(update: Update) -> None:
    """Add the condition that a late copy of a claim whose own message failed stores nothing (M3)."""
    for name in ("tombs", "rare"):
        update.when(f"NOT contains({update.name(name)}, :claim)")


def _append(update: Update) -> None:
    """Add a message whose id is not known (M5)."""
    for name in ("known", "rare"):
        update.when(f"NOT contains({update.name(name)}, :short)")
    update.when(f"NOT contains({update.name('past')}{ANY}, :mark)")
    mail = update.name("mail")
    update.set_to(f"list_append(if_not_exists({mail}, {update.value([])}), :message)", "mail")
    update.add_to(":ids", "known")
    update.set_to(":shard", "orphan_shard")


def _appending(message: Stored, shard: str) -> dict[str, Typed]:
    return {
        # Never delivered: as a head its delivery stands beside the list.
        ":message": {"L": [typed(item.fields(message, head=True))]},
        ":short": _text(short(message.id)),
        ":mark": _text(mark(message.id)[1]),
        ":ids": {"SS": [short(message.id)]},
        ":shard": _text(shard),
    }


def _described(origin: Origin | None, owner: str) -> dict[str, Typed]:
    """Return what an origin says; what it lacks stays as it was."""
    if origin is None:
        return {}
    return {f":{name}": _text(value) for name, value in item.described(origin, owner).items()}


def _offer(update: Update, name: str) -> None:
    """Keep the caller's target if no owner has recorded one (M8)."""
    update.set_to(f"if_not_exists({update.name(name)}, :{name})", name)
