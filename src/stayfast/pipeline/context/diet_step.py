"""The step that leaves out what a route's settings name: repeated paragraphs of instructions, white space of JSON.

The same prefix of a conversation always becomes the same bytes (`policy.context.diet`), so it stays in prompt caches, and
comes before the route's cache markers are placed. Results for the texts of instructions are stored, as most requests have
those of the one before.
"""

from typing import Final

from msgspec.structs import replace

from stayfast.core.types import Request
from stayfast.pipeline.context.step import ContextFacts
from stayfast.policy.context.diet import DietConfig, make_repeat_dropper, minify_json
from stayfast.wire.prompt import LAYOUT_APIS
from stayfast.wire.prompt_texts import edit_texts

MAX_STORED: Final = 64  # texts
MAX_BYTES: Final = 1024 * 1024  # of a body; longer ones are sent as they are


class DietStep:
    """A `ContextStep` of one route. Belongs to one loop."""

    __slots__ = ("_dropped", "config")

    def __init__(self, config: DietConfig) -> None:
        self.config = config
        self._dropped: dict[tuple[str, ...], str] = {}  # by the texts up to this one: what is sent of it

    async def apply(self, request: Request, facts: ContextFacts) -> Request:
        """The request without what the settings name; the same object if there is none of that."""
        if request.api not in LAYOUT_APIS or len(request.body) > MAX_BYTES:
            return request
        before: tuple[str, ...] = ()

        def drop(text: str) -> str:
            nonlocal before
            before = (*before, text)
            return self._drop_repeats(before)

        try:
            body = edit_texts(request.body, request.api, instructions=drop if self.config.drop_repeats else _leave,
                              results=minify_json if self.config.minify_json else _leave)
        except (ValueError, RecursionError):  # a form that only the upstream understands
            return request
        if body is request.body:
            return request
        facts.note(f"left out {len(request.body) - len(body)} bytes of the prompt")
        return replace(request, body=body)

    def _drop_repeats(self, texts: tuple[str, ...]) -> str:
        """The last text without paragraphs that it, or one before it, has already."""
        found = self._dropped.pop(texts, None)
        if found is None:
            drop = make_repeat_dropper()
            found = [drop(text) for text in texts][-1]
        self._dropped[texts] = found
        if len(self._dropped) > MAX_STORED:
            del self._dropped[next(iter(self._dropped))]
        return texts[-1] if found == texts[-1] else found


def _leave(text: str) -> str:
    return text
