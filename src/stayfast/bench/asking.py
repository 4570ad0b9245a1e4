"""Shots as requests of a dialect: path, headers and body."""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from stayfast.bench.schedule import Prompts, Shot
from stayfast.core.types import Api

PATHS: Final = {Api.CHAT: "/chat/completions", Api.COMPLETIONS: "/completions", Api.RESPONSES: "/responses",
                Api.MESSAGES: "/messages"}
ANTHROPIC_VERSION: Final = "2023-06-01"
_ENCODE: Final = msgspec.json.Encoder().encode
_LIMITS: Final = {Api.RESPONSES: "max_output_tokens"}


@dataclass(frozen=True, slots=True)
class AskingConfig:
    """How requests are said. `extra` goes into every body: its values replace ours, null takes a field out."""

    api: Api = Api.CHAT
    model: str = "stayfast-tiny"
    stream: bool = True
    key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    extra: dict[str, Any] = field(default_factory=dict)
    allow_empty: bool = False  # a whole answer without content is good

    def __post_init__(self) -> None:
        if self.api not in PATHS:
            raise ValueError(f"the dialect must be one of {', '.join(PATHS)}, not {self.api}")
        for name, value in self.all_headers():
            if not name or not (name + value).isascii() or any(char in name + value for char in "\r\n\0"):
                raise ValueError(f"the header {name!r} cannot be sent in HTTP")

    def all_headers(self) -> list[tuple[str, str]]:
        """Those of every request, but for host and content-length."""
        accept = "text/event-stream" if self.stream else "application/json"
        found = {"content-type": "application/json", "accept": accept, "accept-encoding": "identity",
                 "user-agent": "stayfast-bench"}
        if self.api is Api.MESSAGES:
            found["anthropic-version"] = ANTHROPIC_VERSION
        if self.key:
            found |= {"x-api-key": self.key} if self.api is Api.MESSAGES else {"authorization": f"Bearer {self.key}"}
        return list((found | {name.lower(): value for name, value in self.headers}).items())


class Asker:
    """Makes bodies."""

    def __init__(self, config: AskingConfig, prompts: Prompts) -> None:
        self._config = config
        self._prompts = prompts
        self._limit = _LIMITS.get(config.api, "max_tokens")

    def body(self, shot: Shot) -> bytes:
        """The request for a shot."""
        config = self._config
        said: dict[str, Any] = {"model": config.model, self._limit: shot.n_output, "stream": config.stream}
        said |= self._asked(shot)
        if config.stream and config.api in (Api.CHAT, Api.COMPLETIONS):
            said["stream_options"] = {"include_usage": True}
        if config.extra:
            said = {name: value for name, value in (said | config.extra).items() if value is not None}
        return _ENCODE(said)

    def _asked(self, shot: Shot) -> dict[str, Any]:
        system = self._prompts.system
        dialogue = self._prompts.dialogue(shot)
        if self._config.api is Api.COMPLETIONS:
            return {"prompt": "\n\n".join([system] * bool(system) + [text for _, text in dialogue])}
        messages = [{"role": role, "content": text} for role, text in dialogue]
        match self._config.api:
            case Api.MESSAGES:
                return {"messages": messages} | ({"system": system} if system else {})
            case Api.RESPONSES:
                return {"input": messages} | ({"instructions": system} if system else {})
        return {"messages": [{"role": "system", "content": system}] * bool(system) + messages}
