"""The list of models, valid for both vendors' SDKs: OpenAI's objects, each with the fields that Anthropic's list reads."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec


def model_list(names: Iterable[str], created: int) -> bytes:
    """The body of `GET /v1/models`. `created`: seconds since the epoch, the same for all."""
    stamp = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    listed = list(names)
    models = [{"id": name, "object": "model", "created": created, "owned_by": "stayfast",
               "type": "model", "display_name": name, "created_at": stamp, "lifecycle": "active"} for name in listed]
    return msgspec.json.encode({"object": "list", "data": models, "has_more": False,
                                "first_id": listed[0] if listed else None, "last_id": listed[-1] if listed else None})
