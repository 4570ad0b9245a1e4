"""What a client asks of a turn that is served as a model, whatever dialect it speaks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stayfast.core.conversation import Conversation, Message
from stayfast.turns.budget import Budget
from stayfast.wire.chat import ask as chat


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `model`: the name that this turn is asked for. `stream`: whether its client reads along. `tenant`: whose
    key it is, None without keys. `headers`: those of the client that may go on to others, lower-case, and the trace context.
    `conversation`: all that was said, tools and sampling included. `late`: the budget that stragglers may go on under, once
    the answer is final, as in `b.gather(..., late=asked.late)`; it ends with the request's deadline.
    """

    model: str
    conversation: Conversation
    late: Budget
    stream: bool
    request_id: str
    tenant: str | None
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """What the user said last; empty where that was no text."""
        return next((message.text for message in reversed(self.conversation.messages) if message.role == "user"), "")

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said before, and last, in its order; without the instructions."""
        return self.conversation.messages

    @property
    def system(self) -> str:
        """The instructions that stand in front."""
        return "\n\n".join(self.conversation.system)

    @property
    def max_tokens(self) -> int | None:
        """How long the answer may be, where the client says so."""
        return self.conversation.max_output_tokens

    def chat_messages(self) -> list[dict[str, Any]]:
        """All of it as OpenAI's chat API says it, to be sent on. Raises Rejected for what that cannot say."""
        messages: list[dict[str, Any]] = chat.body(self.conversation, self.model, stream=False)["messages"]
        return messages
