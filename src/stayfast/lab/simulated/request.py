"""The properties of a request that a simulated provider needs; the text of the prompt is not among them."""

from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.types import Api, Request
from stayfast.lab.simulated.engine import CACHE_BLOCK_TOKENS
from stayfast.lab.simulated.filler_text import make_json
from stayfast.lab.simulated.prompt_cache import CachedPrompt, CacheRules, n_tokens, parse_prompt
from stayfast.policy.routing.affinity import hash_blocks
from stayfast.wire.prompt import read_prompt
from stayfast.wire.request_body import decode_typed

_ABSENT: Final = Raw(b"")
_PROMPT: Final = ("messages", "prompt", "input", "query", "documents", "system", "instructions")
# Request fields that a response repeats.
_ECHOED: Final = (
    "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id", "prompt_cache_key",
    "reasoning", "safety_identifier", "store", "temperature", "text", "tool_choice", "tools", "top_p", "truncation", "user")


class SimulatedRequest(Struct, frozen=True, gc=False):
    """One request. Token counts are the simulated provider's."""

    api: Api
    model: str
    stream: bool = False
    n_prompt_tokens: int = 0
    max_output_tokens: int | None = None
    n_output: int | None = None  # exact number of output tokens; None: drawn by the provider
    include_usage: bool = False  # chat and completions: a last chunk with usage
    n_choices: int = 1
    session: str | None = None  # requests of one session may share their luck
    number: int | None = None  # seeds the random numbers; None: the next number
    tool: str | None = None  # the tool that must be called
    value: str | None = None  # JSON to send: the arguments of that call, or the answer in JSON mode
    inputs: tuple[int, ...] = ()  # embeddings, rerank: a digest of each input or document
    n_dimensions: int = 1536
    top_n: int | None = None  # rerank: results; None: all
    is_base64: bool = False  # embeddings as base64 of 32-bit floats
    blocks: tuple[int, ...] = ()  # the prompt's prefix, for an engine with a prefix cache
    n_cached_tokens: int = 0  # of the prompt
    n_written_tokens: int = 0  # of the prompt, written to the cache
    n_written_1h_tokens: int = 0  # of the prompt, written for an hour
    prompt: CachedPrompt | None = None  # for a provider with a prompt cache
    echo: tuple[tuple[str, bytes], ...] = ()  # responses: the repeated request fields, as JSON


class _Body(Struct, gc=False):
    """The relevant fields of all dialects; others are not decoded."""

    messages: Raw = _ABSENT
    prompt: Raw = _ABSENT
    input: Raw = _ABSENT
    query: Raw = _ABSENT
    documents: Raw = _ABSENT
    system: Raw = _ABSENT
    instructions: Raw = _ABSENT
    tools: Raw = _ABSENT
    tool_choice: Raw = _ABSENT
    response_format: Raw = _ABSENT
    text: Raw = _ABSENT
    output_config: Raw = _ABSENT
    user: Raw = _ABSENT
    prompt_cache_key: Raw = _ABSENT
    metadata: Raw = _ABSENT
    ignore_eos: Raw = _ABSENT  # of self-hosted engines and load generators: exactly max_tokens
    min_tokens: int | None = None  # of self-hosted engines; without ignore_eos, the answer ends by itself after so many
    dimensions: int | None = None
    encoding_format: str | None = None
    top_n: int | None = None  # of rerank


_BODY: Final = msgspec.json.Decoder(_Body)
_ANY: Final = msgspec.json.Decoder()
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])


def to_simulated_request(request: Request, *, model: str = "", number: int | None = None, session: str | None = None,
           include_usage: bool = False, has_blocks: bool = False, cache_rules: CacheRules | None = None) -> SimulatedRequest:
    """The simulated request of a decoded request (`wire.request_body`). Raises Rejected for a malformed body.

    model: overrides the request's. number: seeds the random numbers (None: the next). session: shares luck; None: the body's
    `prompt_cache_key`, `user` or `metadata.user_id`. include_usage: even if the client does not request it. has_blocks: for
    an engine with a prefix cache. cache_rules: for a provider with a prompt cache. Prompt tokens are counted by
    `filler_text.count_tokens`, tools by their bytes; chat templates are not counted.
    """
    body = decode_typed(_BODY, request.body)
    tool, value = _forced_tool(body) if body.tool_choice else (None, None)
    if value is None and (body.response_format or body.text or body.output_config):
        value = _json_mode(body)
    is_explicit = value is not None or request.max_output_tokens is None or bytes(body.ignore_eos) != b"true"
    inputs = _digest_inputs(body.documents if request.api is Api.RERANK else body.input) if (
        request.api in (Api.EMBEDDINGS, Api.RERANK)) else ()
    n_prompt_tokens = len(body.tools) // BYTES_A_TOKEN + sum(
        n_tokens(decode_typed(_ANY, raw)) for name in _PROMPT if (raw := getattr(body, name)))
    return SimulatedRequest(
        request.api, model or request.model, request.stream, n_prompt_tokens,
        request.max_output_tokens, body.min_tokens if is_explicit else request.max_output_tokens,
        request.include_usage or include_usage, request.n_choices,
        session or _session_of(body), number, tool, value, inputs, body.dimensions or 1536, body.top_n,
        body.encoding_format == "base64",
        tuple(hash_blocks(read_prompt(request.body).prompt, block_bytes=CACHE_BLOCK_TOKENS * BYTES_A_TOKEN)) if has_blocks
        else (),
        prompt=parse_prompt(request.body, request.api, model or request.model, cache_rules) if cache_rules else None,
        echo=_echoed_fields(request.body) if request.api is Api.RESPONSES else ())


def _echoed_fields(body: bytes) -> tuple[tuple[str, bytes], ...]:
    fields = _FIELDS.decode(body)
    return tuple((name, bytes(fields[name])) for name in _ECHOED if name in fields and bytes(fields[name]) != b"null")


def _digest_inputs(raw: Raw) -> tuple[int, ...]:
    parsed = decode_typed(_ANY, raw)
    is_one = not isinstance(parsed, list) or (bool(parsed) and isinstance(parsed[0], int))
    return tuple(crc32(msgspec.json.encode(one)) for one in ([parsed] if is_one else parsed))


def _session_of(body: _Body) -> str | None:
    for raw in (body.prompt_cache_key, body.user, body.metadata):
        if raw:
            parsed = decode_typed(_ANY, raw)
            parsed = parsed.get("user_id") if isinstance(parsed, dict) else parsed
            if isinstance(parsed, str):
                return parsed
    return None


def _forced_tool(body: _Body) -> tuple[str | None, str | None]:
    """The required tool and arguments for it; None if no tool is required."""
    choice = decode_typed(_ANY, body.tool_choice)
    wanted = choice if isinstance(choice, str) else _get_member(choice, "type")
    if wanted not in ("required", "any", "tool", "function"):
        return None, None
    name = _get_member(choice, "name") or _get_member(_get_member(choice, "function"), "name")
    tools = decode_typed(_ANY, body.tools) if body.tools else None
    for tool in tools if isinstance(tools, list) else ():
        function = _get_member(tool, "function") or tool
        if isinstance(_get_member(function, "name"), str) and name in (None, function["name"]):
            schema = _get_member(function, "parameters") or _get_member(function, "input_schema")
            return function["name"], make_json(schema if isinstance(schema, Mapping) else {"type": "object"}, 0)
    return None, None


def _json_mode(body: _Body) -> str | None:
    formats = [decode_typed(_ANY, raw) if raw else None for raw in (body.response_format, body.text, body.output_config)]
    for form in (formats[0], _get_member(formats[1], "format"), _get_member(formats[2], "format")):
        kind = _get_member(form, "type")
        if kind == "json_object":
            return make_json(None, 0)
        if kind == "json_schema":
            schema = _get_member(_get_member(form, "json_schema"), "schema") or _get_member(form, "schema")
            return make_json(schema if isinstance(schema, Mapping) else None, 0)
    return None


def _get_member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
