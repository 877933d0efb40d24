"""The part ``replies``: every call of the contract, with the reply to each of its requests dropped in turn."""

from collections.abc import Iterator
from typing import Any

from incumbent.clock import SystemClock
from incumbent.doctor.check import Check
from incumbent.errors import LeaseUnavailable
from incumbent.testing.contract_calls import CALLS, ContractCall, ask, bare, look
from incumbent.validation import shown
from incumbent.verify.store import Dropped, Trial, VerifiedStore

NAME = "replies"
_FEW = 6  # requests; what needs more asks several times in the same way


def replies(store: VerifiedStore, matching: str = "") -> Iterator[Check]:
    """Make each call undisturbed and with a reply dropped: both must answer alike, and leave the same behind."""
    dropped = wrong = 0
    chosen = [call for call in CALLS if matching in call.name]
    for call in chosen:
        try:
            for found in _wrong(store, call):
                dropped += 1
                if found:
                    wrong += 1
                    yield Check.failed(f"{NAME}: {call.name}", found, "a lost reply must change nothing (rule R8)")
        except Exception as error:  # noqa: BLE001 - whatever a store or a client raises is the finding
            wrong += 1
            yield Check.failed(f"{NAME}: {call.name}", f"{type(error).__name__}: {error}", "see the error")
    if not chosen:
        yield Check.failed(NAME, "no call has such a name", "see --matching")
    elif not wrong:
        yield Check.ok(NAME, f"{dropped:,} replies dropped in {len(chosen)} calls: each took effect once, and said so")


def _wrong(store: VerifiedStore, call: ContractCall) -> Iterator[str]:
    """Yield for each reply that was dropped what was wrong; empty if nothing was."""
    with store.trial(_Hurried()) as trial:
        provider, dropped = _begun(trial, call)
        allowed = [bare(ask(call.call, provider))]
        requests = dropped.replies
        left = look(provider)
        if call.twice:
            allowed.append(bare(ask(call.call, provider)))
    for at in range(requests) if requests < _FEW else (0, requests - 1):
        with store.trial(_Hurried()) as trial:
            provider, dropped = _begun(trial, call)
            dropped.begin(at)
            said = ask(call.call, provider)
            dropped.begin()
            found = look(provider)
            if bare(said) not in allowed and not (call.doubtful and said is LeaseUnavailable):
                yield f"it answered {shown(bare(said))} after reply {at + 1} was lost, undisturbed {shown(allowed[0])}"
            elif found != left:
                yield f"it left {shown(found)} behind after reply {at + 1} was lost, undisturbed {shown(left)}"
            else:
                yield ""


def _begun(trial: Trial, call: ContractCall) -> tuple[Any, Dropped]:
    """Bring an empty key to where the call matters."""
    provider, dropped = trial.losing()
    for step in call.before:
        step(provider)
    dropped.begin()
    return provider, dropped


class _Hurried(SystemClock):
    """The machine's clocks, without the pauses between tries."""

    def sleep_ms(self, ms: int) -> None:
        """Go on at once."""
