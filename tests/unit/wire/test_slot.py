"""wire.slot: the slot in a body."""

import json

from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.slot import write_slot


@given(st.dictionaries(st.text(), st.integers(), min_size=1), st.integers(0, 255), st.sampled_from(["", " ", "\n"]))
def test_write_slot_last_member_is_the_slot(fields: dict[str, object], slot: int, after: str) -> None:
    """A slot that a client named is replaced, because the last of equal names counts."""
    found = json.loads(write_slot((json.dumps(fields) + after).encode(), slot))
    assert found == {**fields, "id_slot": slot}
