"""The step that leaves out what a route's settings name: repeated paragraphs of instructions, white space of JSON.

The same prefix of a conversation always becomes the same bytes (`policy.context.diet`), so it stays in prompt caches, and
comes before the route's cache markers are placed. Results for the texts of instructions are stored, as most requests have
those of the one before.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from stayfast.core.types import Request
from stayfast.pipeline.context.step import ContextFacts
from stayfast.policy.context.diet import DietConfig, make_repeat_dropper, minify_json
from stayfast.wire.prompt import LAYOUT_APIS
from stayfast.wire.prompt_texts import edit_texts

MAX_STORED: Final = 64  # texts
MAX_STORED_CHARS: Final = 2 * 1024 * 1024  # of a route
MAX_BYTES: Final = 1024 * 1024  # of a body; longer ones are sent as they are


class DietStep:
    """A `ContextStep` of one route. Belongs to one loop."""

    __slots__ = ("_dropped", "_n_chars", "_n_places", "config")

    def __init__(self, config: DietConfig) -> None:
        self.config = config
        self._dropped: dict[tuple[int, str], tuple[int, str]] = {}  # a place and its text: the next one, and what is sent
        self._n_chars = 0
        self._n_places = 0  # 0 is the begin of a prompt

    async def apply(self, request: Request, facts: ContextFacts) -> Request:
        """The request without what the settings name; the same object if there is none of that."""
        if request.api not in LAYOUT_APIS or len(request.body) > MAX_BYTES:
            return request
        drop = self._make_dropper()
        try:
            body = edit_texts(request.body, request.api, instructions=drop if self.config.drop_repeats else _leave,
                              results=minify_json if self.config.minify_json else _leave)
        except (ValueError, RecursionError):  # a form that only the upstream understands
            return request
        if body is request.body:
            return request
        facts.note(f"left out {len(request.body) - len(body)} bytes of the prompt")
        return replace(request, body=body)

    def _make_dropper(self) -> Callable[[str], str]:
        """A function for the texts of one prompt, in their order. Each is read once, and not at all if it is stored."""
        place, unread, drop_next = 0, list[str](), make_repeat_dropper()

        def drop(text: str) -> str:
            nonlocal place
            found = self._dropped.pop((place, text), None)
            if found is None:
                for earlier in unread:
                    drop_next(earlier)
                unread.clear()
                self._n_places += 1
                found = (self._n_places, drop_next(text))
                self._n_chars += len(text)
            else:
                unread.append(text)
            self._dropped[place, text] = found  # the last one to be removed
            self._remove_oldest()
            place = found[0]
            return text if found[1] == text else found[1]

        return drop

    def _remove_oldest(self) -> None:
        while len(self._dropped) > MAX_STORED or self._n_chars > MAX_STORED_CHARS:
            _, text = oldest = next(iter(self._dropped))
            del self._dropped[oldest]
            self._n_chars -= len(text)


def _leave(text: str) -> str:
    return text
