"""The keyspace and the application's key: put together, and taken apart, in one way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent import ConfigurationError
from incumbent.keyspaces import check_keyspace, full_key, is_in_keyspace, split_key, without_keyspace

KEYSPACES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=20)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(KEYSPACES, KEYS)
def test_key_comes_back_out_of_its_keyspace(keyspace: str, key: str) -> None:
    """H28: whatever is in it; without a keyspace it stays as it is."""
    full = full_key(keyspace, key)
    assert is_in_keyspace(full, keyspace)
    assert without_keyspace(full, keyspace) == key
    if keyspace:
        assert split_key(full) == (keyspace, key)


@given(KEYSPACES, KEYS, KEYSPACES, KEYS)
def test_keys_of_two_keyspaces_differ(keyspace: str, key: str, other: str, other_key: str) -> None:
    """A keyspace has no slash, so the first one parts them."""
    if keyspace and other and (keyspace, key) != (other, other_key):
        assert full_key(keyspace, key) != full_key(other, other_key)


@pytest.mark.parametrize(("full", "parts"), [("a/b/c", ("a", "b/c")), ("a", ("", "a")), ("/a", ("", "a"))])
def test_first_slash_parts(full: str, parts: tuple[str, str]) -> None:
    """A key without one has no keyspace."""
    assert split_key(full) == parts


def test_keyspace_is_not_a_beginning_of_another() -> None:
    """The slash belongs to it."""
    assert not is_in_keyspace("orders-eu/a", "orders")
    assert is_in_keyspace("orders-eu/a", "")


@pytest.mark.parametrize("keyspace", ["a/b", "/", 7, None, b"a"])
def test_keyspace_is_text_without_a_slash(keyspace: object) -> None:
    """Refused where it is given."""
    with pytest.raises(ConfigurationError, match="without a slash"):
        check_keyspace(keyspace)


def test_keyspace_that_is_not_unicode_is_refused() -> None:
    """As the words of a terminal may be that does not write UTF-8."""
    with pytest.raises(ConfigurationError, match="not valid Unicode"):
        full_key("caf\udce9", "a")
