"""Pages of lists."""

import msgspec
import pytest

from stayfast.core.errors import Rejected
from stayfast.wire.jobs.pages import encode_page, parse_choice, parse_limit


@pytest.mark.parametrize(("value", "limit"), [(None, 20), ("1", 1), ("100", 100)])
def test_parse_limit_in_bounds_is_the_number(value: str | None, limit: int) -> None:
    assert parse_limit({} if value is None else {"limit": value}, 20, 100) == limit


@pytest.mark.parametrize("value", ["", "0", "101", "-1", "1.5", "x", "\u0663", "9" * 400])
def test_parse_limit_outside_is_rejected(value: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse_limit({"limit": value}, 20, 100)
    assert (caught.value.status, caught.value.param) == (400, "limit")


def test_parse_choice_unknown_is_rejected() -> None:
    assert parse_choice({}, "order", ("asc", "desc")) is None
    assert parse_choice({"order": "asc"}, "order", ("asc", "desc")) == "asc"
    with pytest.raises(Rejected, match="order must be one of asc, desc"):
        parse_choice({"order": "up"}, "order", ("asc", "desc"))


def test_encode_page_names_its_ends() -> None:
    page = msgspec.json.decode(encode_page([{"id": "a"}, {"id": "b"}], has_more=True))
    assert page == {"object": "list", "data": [{"id": "a"}, {"id": "b"}], "has_more": True, "first_id": "a", "last_id": "b"}
    assert msgspec.json.decode(encode_page([], has_more=False, is_anthropic=True)) == {
        "data": [], "has_more": False, "first_id": None, "last_id": None}
