"""Each SDK's API behind one shape, for what all of them must survive alike: errors, broken answers, and leaving."""

from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType, TracebackType
from typing import Protocol, Self

import anthropic
import openai

from tests.clients.gateway import Gateway

CLIENT_TIMEOUT_S = 10.0
MAX_TOKENS = 64


class Caller(Protocol):
    """A client that waits. Its SDK's module holds its exceptions."""

    @property
    def sdk(self) -> ModuleType:
        """The SDK."""
        ...

    def whole(self, model: str, ask: str) -> str:
        """The text of an answer asked for as a whole."""
        ...

    def pieces(self, model: str, ask: str) -> Iterator[str]:
        """The text of a stream, as it comes."""
        ...


class Chat:
    """OpenAI's chat completions."""

    sdk = openai

    def __init__(self, client: openai.OpenAI) -> None:
        self._completions = client.chat.completions

    def whole(self, model: str, ask: str) -> str:
        """The text of an answer asked for as a whole."""
        answer = self._completions.create(model=model, messages=[{"role": "user", "content": ask}])
        return answer.choices[0].message.content or ""

    def pieces(self, model: str, ask: str) -> Iterator[str]:
        """The text of a stream, as it comes."""
        for chunk in self._completions.create(model=model, messages=[{"role": "user", "content": ask}], stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


class Responses:
    """OpenAI's responses."""

    sdk = openai

    def __init__(self, client: openai.OpenAI) -> None:
        self._responses = client.responses

    def whole(self, model: str, ask: str) -> str:
        """The text of an answer asked for as a whole."""
        return self._responses.create(model=model, input=ask).output_text

    def pieces(self, model: str, ask: str) -> Iterator[str]:
        """The text of a stream, as it comes."""
        for event in self._responses.create(model=model, input=ask, stream=True):
            if event.type == "response.output_text.delta":
                yield event.delta


class Messages:
    """Anthropic's messages."""

    sdk = anthropic

    def __init__(self, client: anthropic.Anthropic) -> None:
        self._messages = client.messages

    def whole(self, model: str, ask: str) -> str:
        """The text of an answer asked for as a whole."""
        answer = self._messages.create(model=model, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": ask}])
        return "".join(block.text for block in answer.content if block.type == "text")

    def pieces(self, model: str, ask: str) -> Iterator[str]:
        """The text of a stream, as it comes."""
        for event in self._messages.create(model=model, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": ask}],
                                           stream=True):
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                yield event.delta.text


class AsyncCaller(Protocol):
    """A client on an event loop, whose calls can be cancelled. To be used with `async with`."""

    async def whole(self, model: str, ask: str) -> object:
        """An answer asked for as a whole."""
        ...

    def pieces(self, model: str, ask: str) -> AsyncIterator[str]:
        """The text of a stream, as it comes."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None: ...


class _AsyncOpenAI:
    def __init__(self, gateway: Gateway) -> None:
        self._client = openai.AsyncOpenAI(base_url=gateway.openai_url, api_key="sk-client", max_retries=0,
                                          timeout=CLIENT_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._client.close()


class AsyncChat(_AsyncOpenAI):
    """OpenAI's chat completions."""

    async def whole(self, model: str, ask: str) -> object:
        """An answer asked for as a whole."""
        return await self._client.chat.completions.create(model=model, messages=[{"role": "user", "content": ask}])

    async def pieces(self, model: str, ask: str) -> AsyncIterator[str]:
        """The text of a stream, as it comes."""
        async for chunk in await self._client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": ask}], stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


class AsyncResponses(_AsyncOpenAI):
    """OpenAI's responses."""

    async def whole(self, model: str, ask: str) -> object:
        """An answer asked for as a whole."""
        return await self._client.responses.create(model=model, input=ask)

    async def pieces(self, model: str, ask: str) -> AsyncIterator[str]:
        """The text of a stream, as it comes."""
        async for event in await self._client.responses.create(model=model, input=ask, stream=True):
            if event.type == "response.output_text.delta":
                yield event.delta


class AsyncMessages:
    """Anthropic's messages."""

    def __init__(self, gateway: Gateway) -> None:
        self._client = anthropic.AsyncAnthropic(base_url=gateway.origin, api_key="sk-client", max_retries=0,
                                                timeout=CLIENT_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._client.close()

    async def whole(self, model: str, ask: str) -> object:
        """An answer asked for as a whole."""
        return await self._client.messages.create(model=model, max_tokens=MAX_TOKENS,
                                                  messages=[{"role": "user", "content": ask}])

    async def pieces(self, model: str, ask: str) -> AsyncIterator[str]:
        """The text of a stream, as it comes."""
        async for event in await self._client.messages.create(
                model=model, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": ask}], stream=True):
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                yield event.delta.text


ASYNC_CALLERS: dict[str, Callable[[Gateway], AsyncCaller]] = {
    "chat": AsyncChat, "responses": AsyncResponses, "messages": AsyncMessages}
