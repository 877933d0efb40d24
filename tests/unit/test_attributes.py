"""DynamoDB's values: how they are written, and how many bytes they take."""

from typing import Any

import pytest

from incumbent.errors import StoredFormatUnknown
from incumbent.providers.dynamodb import attributes


@pytest.mark.parametrize(
    ("value", "written", "size"),
    [
        ("", {"S": ""}, 0),
        ("é1", {"S": "é1"}, 3),
        (0, {"N": "0"}, 2),
        (123_456, {"N": "123456"}, 5),
        (True, {"BOOL": True}, 1),
        (frozenset({"b", "é"}), {"SS": ["b", "é"]}, 8),
        ([], {"L": []}, 3),
        (["ab", 7], {"L": [{"S": "ab"}, {"N": "7"}]}, 9),
        ({}, {"M": {}}, 3),
        ({"é": "abc", "n": 1}, {"M": {"é": {"S": "abc"}, "n": {"N": "1"}}}, 13),
    ],
)
def test_value_has_a_form_and_a_size(value: Any, written: dict[str, Any], size: int) -> None:
    """Text by its bytes, two digits to a byte, 3 bytes for what holds others and 1 for each of these."""
    assert attributes.typed(value) == written
    assert attributes.size_of_value(written) == size
    assert attributes.size_of({"é": written, "v": {"N": "1"}}) == size + 5


def test_missing_attribute_has_a_value_of_its_kind() -> None:
    """What is not there takes no room."""
    item: dict[str, Any] = {"n": {"N": "7"}, "t": {"S": "x"}, "e": {"SS": ["a", "b"]}}
    assert (attributes.number(item, "n"), attributes.number(item, "x")) == (7, 0)
    assert (attributes.text(item, "t"), attributes.text(item, "x")) == ("x", None)
    assert attributes.elements(item, "e") == frozenset({"a", "b"})
    assert attributes.elements(item, "x") == frozenset()


@pytest.mark.parametrize(("text", "most_bytes", "left"), [("aé", 3, "aé"), ("aé", 2, "a"), ("a\ud800b", 9, "a?b")])
def test_text_is_cut_between_characters(text: str, most_bytes: int, left: str) -> None:
    """By its bytes; what is not a character becomes a question mark."""
    assert attributes.cut(text, most_bytes) == left


def test_item_of_another_version_is_left_alone() -> None:
    """M12: its error names the item, the key and both versions."""
    attributes.check_version({"v": {"N": "1"}}, key="orders/k")
    said = "record 'traces#3' of key 'orders/k' has version {'N': '9'}; this code knows 1"
    with pytest.raises(StoredFormatUnknown, match=said) as raised:
        attributes.check_version({"v": {"N": "9"}, "sk": {"S": "traces#3"}}, key="orders/k")
    assert raised.value.key == "orders/k"
    with pytest.raises(StoredFormatUnknown, match="record 'lease' of key 'orders/k' has version None"):
        attributes.check_version({}, key="orders/k")
