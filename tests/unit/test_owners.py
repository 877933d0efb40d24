"""Owners and tickets: no two alike, and never one for the other."""

import os

import pytest

from incumbent.owners import is_ticket, new_owners, new_ticket, random_name, request_of, this_process
from incumbent.validation import check_owner


def test_no_two_are_alike() -> None:
    """H7: for the same request, too."""
    names = [make() for make in (new_ticket, random_name) for _ in range(1_000)]
    names += [owner for _ in range(500) for owner in new_owners("r-1")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("request_id", ["r-1", "with.dots", "", None, "x" * 500])
def test_owner_names_its_request(request_id: str | None) -> None:
    """As much of it as a store takes; a run without one is just a run."""
    for owner in new_owners(request_id):
        assert not is_ticket(check_owner(owner, "k"))
        assert request_of(owner) == (request_id or "run")[:128]


def test_ticket_is_not_an_owner() -> None:
    """M9: a forged event cannot name a run's owner."""
    ticket = check_owner(new_ticket(), "k")
    assert is_ticket(ticket)
    assert request_of(ticket) is None
    assert request_of("another-program") is None


def test_names_are_hard_to_guess() -> None:
    """At least ten random bytes."""
    owner, another = new_owners("r")
    for made, prefix in ((new_ticket(), "ticket."), (owner, "r."), (another, "r."), (random_name(), "")):
        assert made.startswith(prefix)
        assert len(bytes.fromhex(made.removeprefix(prefix))) >= 10


def test_forked_child_is_another_process() -> None:
    """A parent stays the same one, whatever it forks."""
    parent = this_process()
    child = os.fork()
    if not child:
        os._exit(0 if this_process() not in (parent, None) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert this_process() is parent
