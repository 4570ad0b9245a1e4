"""What an agent asks: any model that can be asked like this. `turns.chat` has one for OpenAI's client."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from stayfast.turns.tools import ToolCallRequest

Json = dict[str, Any]
OnPiece = Callable[[str | ToolCallRequest], None]


class ModelReply(msgspec.Struct, frozen=True):
    """What a model said in one step. `n_tokens`: of the output; 0: not known."""

    text: str = ""
    calls: tuple[ToolCallRequest, ...] = ()
    n_tokens: int = 0


class Model(Protocol):
    """See the module. One object may be asked by many turns at once."""

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        """Answer. Messages and tools are in the form of OpenAI's chat API; they are not to be changed.

        `hear` is told each piece of text as it comes, and each call as soon as its arguments are whole; then it is not
        told again. Not `may_call`: the answer is wanted now.
        """
