"""The list of models."""

import json

from anthropic.types import ModelInfo
from openai.types import Model

from stayfast.wire.local_answers import model_list


def test_both_sdks_read_the_list() -> None:
    """Every entry validates against both vendors' models."""
    said = json.loads(model_list(["fast", "deep"], 1766000000))
    assert [entry["id"] for entry in said["data"]] == ["fast", "deep"]
    for entry in said["data"]:
        assert Model.model_validate(entry).created == 1766000000
        assert ModelInfo.model_validate(entry).created_at.timestamp() == 1766000000
    assert (said["object"], said["has_more"], said["first_id"], said["last_id"]) == ("list", False, "fast", "deep")


def test_no_models() -> None:
    """An empty list is a list."""
    assert json.loads(model_list([], 0)) == {"object": "list", "data": [], "has_more": False, "first_id": None,
                                             "last_id": None}
