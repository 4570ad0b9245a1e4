"""Chat requests with instructions and tools, and their heads."""

from typing import Any

import msgspec

from stayfast.core.types import Api, Request
from stayfast.wire.prompt_head import PromptHead, read_head
from stayfast.wire.request_body import decode


def chat(system: str, *, tools: tuple[str, ...] = (), user: str = "hi", **more: Any) -> Request:
    body: dict[str, Any] = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
                            "model": "m", **more}
    if tools:
        body["tools"] = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    return decode(Api.CHAT, msgspec.json.encode(body))


def head(request: Request) -> PromptHead:
    found = read_head(request)
    assert found is not None
    return found
