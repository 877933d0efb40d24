"""Reads events: makes the call of an event (its key, its message's id, what is stored of it) or of a wake."""

import os
from types import NoneType
from typing import Any

from incumbent import observe, results
from incumbent.calls import Call
from incumbent.clock import Moment
from incumbent.errors import ConfigurationError, IncumbentError, LeaseKeyMissing
from incumbent.frozen import maker
from incumbent.keyspaces import full_key, is_in_keyspace, without_keyspace
from incumbent.options import CheckedOptions, Selector
from incumbent.owners import random_name
from incumbent.sources import Source, stored_form
from incumbent.stand_in import STAND_IN, clock_in_force
from incumbent.validation import MAX_MESSAGE_ID_BYTES, check_message_id, fit_message_id, flag, shown
from incumbent.values import Message, Origin
from incumbent.wakers import Wake

_MAX_NUMBER = 10**256  # a larger number is refused as key and as id
_make_call = maker(Call)
_make_message = maker(Message)
_make_origin = maker(Origin)
_JSON = (dict, list, str, int, float, bool, NoneType)


class EventReader:
    """Makes the calls of one decorated function from its events. Sends no request."""

    def __init__(self, options: CheckedOptions, *, one_of_several: bool) -> None:
        """Prepare for one function. ``one_of_several``: one invocation may call it more than once."""
        self._options = options
        self._one_of_several = one_of_several
        self._said: tuple[str, str | None] | None = None

    def call_of(self, event: Any, context: Any, source: Source, own_event: Any, *, hands_over: bool) -> Call:
        """Make the call of an event. ``own_event`` is what this invocation's run gets."""
        options = self._options
        if options.store is stored_form and not isinstance(event, _JSON):
            raise ConfigurationError(
                f"{options.name}: the event is a {type(event).__name__}, but the mailbox stores the JSON event: put "
                "@leased above @event_parser and @event_source (for a record of a batch, give store= and load=)"
            )
        given = self._key(event)
        keyspace, target = self._environment()
        try:
            full = full_key(keyspace, given)
        except ConfigurationError as cause:
            raise LeaseKeyMissing(f"{options.name}: no usable key: {cause}", key=given) from cause
        key = without_keyspace(full, keyspace)
        request_id = getattr(context, "aws_request_id", None) or f"local-{random_name()}"
        if not isinstance(request_id, str):
            raise self._unfit("aws_request_id", request_id, "text")
        message_id = self._message_id(event, source, request_id, key)
        stored = stored_form(event, source) if options.store is stored_form else options.store(event)
        if type(stored) is not dict and results.unfinished(stored):
            results.refuse_unfinished(stored, f"{options.name}: store")
        return _make_call(
            full_key=full,
            key=key,
            said={"key": given, "message_id": message_id},
            message=_make_message(id=self._stored_id(message_id, key), event=stored),
            event=own_event,
            origin=_origin(context, request_id, keyspace, target),
            ends=self._ends(context),
            synchronous=source.synchronous or hands_over,
            comes_again=self._comes_again(source),
        )

    def call_of_wake(self, wake: Wake, context: Any) -> Call | None:
        """Make the call of a resume event. Return ``None`` when its key is not in this function's keyspace."""
        if flag(os.environ, "INCUMBENT_DISABLED"):
            observe.LOG.warning("INCUMBENT_DISABLED is set: messages of key %r wait until it is unset", wake.key)
        keyspace, target = self._environment()
        if not is_in_keyspace(wake.key, keyspace):
            observe.LOG.warning(
                "a resume event for key %r is ignored: this function's keyspace is %r; give send() the same keyspace=",
                wake.key,
                keyspace,
            )
            return None
        request_id = getattr(context, "aws_request_id", None) or f"local-{random_name()}"
        if not isinstance(request_id, str):
            raise self._unfit("aws_request_id", request_id, "text")
        return Call(
            full_key=wake.key,
            key=without_keyspace(wake.key, keyspace),
            message=None,
            ticket=wake.ticket,
            hops=wake.hops,
            origin=_origin(context, request_id, keyspace, target),
            ends=self._ends(context),
        )

    def passes(self, event: Any) -> bool:
        """Return whether an event runs without a lease."""
        unless = self._options.unless
        return unless is not None and bool(self._read(event, Selector("unless", unless)))

    def has(self, wake: Wake) -> bool:
        """Return whether the key of a resume event is in this function's keyspace."""
        return is_in_keyspace(wake.key, self.keyspace())

    def keyspace(self) -> str:
        """Return the chosen keyspace, or the function's name, inside Lambda the deployed one."""
        return self._environment()[0]

    def _environment(self) -> tuple[str, str | None]:
        """Return the keyspace, and the function to wake unless it is this one: read once, and anew for each test."""
        if self._said is not None and STAND_IN.provider is None:
            return self._said
        said = self._keyspace(), self._options.target or os.environ.get("INCUMBENT_TARGET")
        self._said = said if STAND_IN.provider is None else None
        return said

    def _keyspace(self) -> str:
        if self._options.keyspace is not None:
            return self._options.keyspace
        deployed = os.environ.get("AWS_LAMBDA_FUNCTION_NAME")
        if deployed is None or not self._one_of_several:
            return deployed or self._options.name
        return f"{deployed}.{self._options.name}"  # two functions in one Lambda function do not share messages

    def _key(self, event: Any) -> str:
        """Return the user's key. Anything but text and whole numbers is refused."""
        value = self._read(event, self._options.key)
        value = value if type(value) is str else _as_text(value)
        if isinstance(value, str) and value:
            return value
        raise LeaseKeyMissing(
            f"{self._options.name}: {self._options.key.said} gave {type(value).__name__} {shown(value)} instead of a "
            "non-empty string or an integer: the event has no key, and nothing was run or stored"
        )

    def _message_id(self, event: Any, source: Source, request_id: str, key: str) -> str:
        """Return the event's id: the chosen one, the source's, or the request's (the same on an asynchronous retry).

        One request may call a function for several messages; each has its own id then.
        """
        chosen = self._options.message_id
        if chosen is None:
            return source.message_id or (f"{request_id}#{random_name()}" if self._one_of_several else request_id)
        value = self._read(event, chosen)
        value = value if type(value) is str else _as_text(value)
        if isinstance(value, str) and value:
            return value
        raise LeaseKeyMissing(
            f"{self._options.name}: {chosen.said} gave {type(value).__name__} {shown(value)} instead of a non-empty "
            "string or an integer: the event has no message id, and nothing was run or stored",
            key=key,
        )

    def _comes_again(self, source: Source) -> bool:
        """Return whether the source of a failed message delivers it again under the same id."""
        if source.synchronous or source.kind == "state-machine":
            return False  # the waiting caller decides
        if self._options.message_id is not None or source.message_id is not None:
            return True
        return source.kind != "record" and not self._one_of_several  # asynchronous retries keep the request's id

    def _stored_id(self, message_id: str, key: str) -> str:
        """Return the id to store: one that is too long is digested. The sources' ids have been shortened already."""
        if message_id.isascii() and len(message_id) <= MAX_MESSAGE_ID_BYTES and "~" not in message_id:
            return message_id  # the usual ids, and quickly: the tilde is of a digested one
        try:
            return check_message_id(fit_message_id(message_id) if self._options.message_id else message_id, key)
        except ConfigurationError as cause:
            raise LeaseKeyMissing(f"{self._options.name}: no usable message id: {cause}", key=key) from cause

    def _read(self, event: Any, selector: Selector) -> object:
        """Evaluate a callable or an expression. Any error means that the event lacks the value.

        An answer whose work is not done, such as a coroutine, is refused: it would be true of every event.
        """
        try:
            value = selector.choose(event)
        except IncumbentError:
            raise
        except Exception as cause:
            raise LeaseKeyMissing(
                f"{self._options.name}: {selector.said} failed on the event ({type(cause).__name__}: {cause}): nothing "
                "was run or stored"
            ) from cause
        if type(value) is not str and results.unfinished(value):
            results.refuse_unfinished(value, f"{self._options.name}: {selector.said}")
        return value

    def _unfit(self, what: str, value: object, due: str) -> ConfigurationError:
        """Make the error of a context that Lambda does not make, such as a test's."""
        return ConfigurationError(
            f"{self._options.name}: the context's {what} is {type(value).__name__} {shown(value)} instead of {due}"
        )

    def _ends(self, context: Any) -> Moment | None:
        """Return when the invocation times out, on both clocks; ``None`` if the context does not say."""
        remaining = getattr(context, "get_remaining_time_in_millis", None)
        if remaining is None:
            return None
        left_ms, stop_before_ms = remaining(), self._options.settings.stop_before_ms
        if type(left_ms) not in (int, float):
            raise self._unfit("get_remaining_time_in_millis()", left_ms, "a number")
        if stop_before_ms is not None and left_ms <= stop_before_ms and not self._one_of_several:
            raise ConfigurationError(
                f"{self._options.name}: the invocation has {left_ms:,} ms and stop_before_ms is {stop_before_ms:,}: "
                "every run would be told to stop as it begins; raise the function's timeout"
            )
        return clock_in_force(self._options.clock).now().plus(left_ms)


def _origin(context: Any, request_id: str, keyspace: str, target: str | None) -> Origin:
    """Return the caller, with the function to wake: the chosen one, or this one as invoked, alias included."""
    return _make_origin(
        keyspace=keyspace,
        target=target or getattr(context, "invoked_function_arn", None),
        request_id=request_id,
        log_stream=getattr(context, "log_stream_name", None),
    )


def _as_text(value: object) -> object:
    """Return a whole number as its digits, any text (an enum's too) as plain text, and other values unchanged."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER:
        return int.__repr__(value)
    return value
