"""The interface of the models that an agent calls. `turns.chat` implements it for OpenAI's client."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from stayfast.turns.tools import ToolCallRequest

Json = dict[str, Any]
OnPiece = Callable[[str | ToolCallRequest], None]


class ModelReply(msgspec.Struct, frozen=True):
    """The reply of a model to one request. `n_tokens`: output tokens; 0: unknown."""

    text: str = ""
    calls: tuple[ToolCallRequest, ...] = ()
    n_tokens: int = 0


class Model(Protocol):
    """One object may serve many turns at once."""

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                       max_tokens: int) -> ModelReply:
        """Generate a reply. Messages and tools have the form of OpenAI's chat API; do not change them.

        Call `on_piece` with each piece of text as it arrives, and with each tool call once, when its arguments are complete.
        If not `may_call`, tool calls are not allowed: answer now.
        """
