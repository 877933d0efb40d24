"""Owners and tickets: no two alike, and never one for the other."""

import pytest

from incumbent.owners import is_ticket, new_owner, new_ticket, random_name, request_of
from incumbent.validation import check_owner


def test_no_two_are_alike() -> None:
    """H7: for the same request, too."""
    names = [make() for make in (new_ticket, random_name, lambda: new_owner("r-1")) for _ in range(1_000)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("request_id", ["r-1", "with.dots", "", None, "x" * 500])
def test_owner_names_its_request(request_id: str | None) -> None:
    """As much of it as a store takes; a run without one is just a run."""
    owner = check_owner(new_owner(request_id), "k")
    assert not is_ticket(owner)
    assert request_of(owner) == (request_id or "run")[:128]


def test_ticket_is_not_an_owner() -> None:
    """M9: a forged event cannot name a run's owner."""
    ticket = check_owner(new_ticket(), "k")
    assert is_ticket(ticket)
    assert request_of(ticket) is None
    assert request_of("another-program") is None


def test_names_are_hard_to_guess() -> None:
    """At least ten random bytes."""
    for made, prefix in ((new_ticket(), "ticket."), (new_owner("r"), "r."), (random_name(), "")):
        assert made.startswith(prefix)
        assert len(bytes.fromhex(made.removeprefix(prefix))) >= 10
