"""A simulated Gemini API: what it accepts, what it answers, and how it fails. Without I/O and time.

It rejects what Google rejects: unknown fields, empty parts, results that do not match the calls before them, and (from
Gemini 3 on) calls without the signature that it issued. A word in brackets in the last text of the user picks the answer:

    [tool] [tools]       one or two function calls, if tools are declared; [args] one with nested arguments
    [length] [safety]    the finish reasons MAX_TOKENS, SAFETY; [broken] MALFORMED_FUNCTION_CALL; [blocked] a blocked prompt
    [429] [daily] [503]  an error with RetryInfo; [daily] names a quota per day; [error] an error event after the first piece
    [truncated] [cut]    a stream without a finish reason, which ends cleanly or not; [hang] one that stops after two pieces

Its forms are checked by the official SDK (tests/clients/test_gemini_sdk.py).
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

Json = dict[str, Any]
Ending = Literal["clean", "cut", "hang"]
PIECES: Final = ("Good ", "morning", " from ", "Gemini.")
THOUGHT: Final = "Considering it."
RETRY_S: Final = 27
N_PROMPT, N_THOUGHTS, N_CACHED, N_A_PIECE = 40, 7, 16, 3  # tokens
NO_SIGNATURE: Final = "skip_thought_signature_validator"
_PATH: Final = re.compile(r"/(?:v1beta|v1|v1/projects/[^/]+/locations/[^/]+/publishers/google)/models/([^/:]+):(\w+)")
_WORD: Final = re.compile(r"\[(\w+)\]")
_CHECKS_SIGNATURES: Final = re.compile(r"gemini-(?![12]\b)")
_RPC: Final = "type.googleapis.com/google.rpc."
_OPAQUE: Final = frozenset(("args", "response", "parameters", "parametersJsonSchema", "responseJsonSchema"))
_STATUSES: Final = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED",
                    503: "UNAVAILABLE"}


class GeminiApiObject(Struct, gc=False, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """An object of a request; unknown fields are errors."""


class GeminiApiData(GeminiApiObject, gc=False, kw_only=True):
    data: str
    mime_type: str


class GeminiApiFile(GeminiApiObject, gc=False, kw_only=True):
    file_uri: str
    mime_type: str | None = None


class GeminiApiCall(GeminiApiObject, gc=False, kw_only=True):
    name: str
    args: dict[str, Any] = {}
    id: str | None = None


class GeminiApiResult(GeminiApiObject, gc=False, kw_only=True):
    name: str
    response: dict[str, Any]
    id: str | None = None
    parts: list[dict[str, Any]] | None = None


class GeminiApiPart(GeminiApiObject, gc=False, kw_only=True):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: GeminiApiData | None = None
    file_data: GeminiApiFile | None = None
    function_call: GeminiApiCall | None = None
    function_response: GeminiApiResult | None = None


class GeminiApiContent(GeminiApiObject, gc=False, kw_only=True):
    parts: list[GeminiApiPart]
    role: Literal["user", "model"] = "user"


class GeminiApiFunction(GeminiApiObject, gc=False, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class GeminiApiTool(GeminiApiObject, gc=False, kw_only=True):
    function_declarations: list[GeminiApiFunction]


class GeminiApiCalling(GeminiApiObject, gc=False, kw_only=True):
    mode: Literal["AUTO", "ANY", "NONE", "VALIDATED"] = "AUTO"
    allowed_function_names: list[str] | None = None


class GeminiApiToolConfig(GeminiApiObject, gc=False, kw_only=True):
    function_calling_config: GeminiApiCalling | None = None


class GeminiApiThinking(GeminiApiObject, gc=False, kw_only=True):
    include_thoughts: bool = False
    thinking_budget: int | None = None
    thinking_level: Literal["MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH"] | None = None


class GeminiApiConfig(GeminiApiObject, gc=False, kw_only=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    candidate_count: int | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_mime_type: Literal["text/plain", "application/json"] | None = None
    response_json_schema: dict[str, Any] | None = None
    thinking_config: GeminiApiThinking | None = None


class GeminiApiSafety(GeminiApiObject, gc=False, kw_only=True):
    category: str
    threshold: str


class GeminiApiRequest(GeminiApiObject, gc=False, kw_only=True):
    """A generateContent request."""

    contents: list[GeminiApiContent]
    system_instruction: GeminiApiContent | None = None
    tools: list[GeminiApiTool] | None = None
    tool_config: GeminiApiToolConfig | None = None
    generation_config: GeminiApiConfig = msgspec.field(default_factory=GeminiApiConfig)
    safety_settings: list[GeminiApiSafety] | None = None
    cached_content: str | None = None
    service_tier: Literal["standard", "flex", "priority"] | None = None


class GeminiApiEmbedding(GeminiApiObject, gc=False, kw_only=True):
    model: str
    content: GeminiApiContent
    output_dimensionality: int | None = None


class GeminiApiEmbeddings(GeminiApiObject, gc=False, kw_only=True):
    """A batchEmbedContents request."""

    requests: list[GeminiApiEmbedding]


def spell_names(value: Any) -> Any:
    """A request with all names of fields in camel case; Google's APIs accept both spellings, and its SDK mixes them."""
    if isinstance(value, list):
        return [spell_names(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {name: re.sub("_(.)", lambda found: found[1].upper(), name) for name in value}
    return {names[name]: item if names[name] in _OPAQUE else spell_names(item) for name, item in value.items()}


@dataclass(frozen=True, slots=True)
class GeminiReply:
    """One answer. `pieces` of its body are sent one after another; `ending` follows the last."""

    status: int
    pieces: tuple[bytes, ...]
    is_stream: bool = False
    ending: Ending = "clean"


class GeminiRefusal(Exception):
    """The API refuses the request."""

    def __init__(self, status: int, message: str, *details: Json) -> None:
        super().__init__(message)
        self.status = status
        self.details = details

    def to_error(self) -> Json:
        error: Json = {"code": self.status, "message": str(self), "status": _STATUSES[self.status]}
        return {"error": error | ({"details": list(self.details)} if self.details else {})}


class GeminiVendor:
    """The API. `keys`: accepted API keys, and OAuth tokens as bearer tokens."""

    def __init__(self, keys: frozenset[str] = frozenset(("sk-upstream-key",))) -> None:
        self._keys = keys
        self._n_answers = 0
        self._issued: set[str] = {NO_SIGNATURE}

    def answer_request(self, target: str, headers: Mapping[str, str], body: bytes) -> GeminiReply:
        """target: path and query. headers: with names in lower case."""
        try:
            self._check_key(headers)
            path, _, query = target.partition("?")
            found = _PATH.fullmatch(path)
            if found is not None and found[2] == "batchEmbedContents":
                return GeminiReply(200, (msgspec.json.encode(_embed(body)),))
            if found is None or found[2] not in ("generateContent", "streamGenerateContent"):
                raise GeminiRefusal(404, f"Requested entity was not found: {path}")
            request = self._read_request(body, found[1])
            chunks = self._answer_chunks(request, found[1])
        except GeminiRefusal as refusal:
            return GeminiReply(refusal.status, (msgspec.json.encode(refusal.to_error()),))
        if found[2] == "streamGenerateContent":
            if query != "alt=sse":
                return GeminiReply(404, (b"the simulator streams server-sent events only",))
            return _stream(chunks, _word(request))
        return GeminiReply(200, (msgspec.json.format(msgspec.json.encode(_join(chunks)), indent=2),))

    def _check_key(self, headers: Mapping[str, str]) -> None:
        key = headers.get("x-goog-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not key:
            raise GeminiRefusal(403, "Method doesn't allow unregistered callers (callers without established identity).")
        if key not in self._keys:
            raise GeminiRefusal(400, "API key not valid. Please pass a valid API key.",
                                {"@type": f"{_RPC}ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"})

    def _read_request(self, body: bytes, model: str) -> GeminiApiRequest:
        try:
            request = msgspec.convert(spell_names(msgspec.json.decode(body)), GeminiApiRequest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise GeminiRefusal(400, f"Invalid JSON payload received. {error}") from None
        if request.generation_config.candidate_count not in (None, 1):
            raise GeminiRefusal(400, "Only one candidate can be specified in the current model")
        if not request.contents or request.contents[-1].role != "user":
            raise GeminiRefusal(400, "Please ensure that single turn requests end with a user role")
        n_calls: list[str] = []
        for content in request.contents:
            if not content.parts or any(not _is_filled(part) for part in content.parts):
                raise GeminiRefusal(400, "* GenerateContentRequest.contents.parts: contents.parts must not be empty.")
            results = [part.function_response.name for part in content.parts if part.function_response is not None]
            if results != n_calls:
                raise GeminiRefusal(400, "Please ensure that the number of function response parts is equal to the number "
                                    "of function call parts of the function call turn.")
            n_calls = [part.function_call.name for part in content.parts if part.function_call is not None]
            self._check_signatures(content, model)
        return request

    def _check_signatures(self, content: GeminiApiContent, model: str) -> None:
        calls = [part for part in content.parts if part.function_call is not None]
        if calls and _CHECKS_SIGNATURES.match(model) and calls[0].thought_signature is None:
            raise GeminiRefusal(400, "Function call is missing a thought_signature in functionCall parts.")
        signatures = {part.thought_signature for part in content.parts if part.thought_signature is not None}
        if not signatures <= self._issued:
            raise GeminiRefusal(400, "Corrupted thought signature.")

    def _answer_chunks(self, request: GeminiApiRequest, model: str) -> list[Json]:
        """The events of the answer; all have the same head."""
        word = _word(request)
        _refuse(word)
        self._n_answers += 1
        head: Json = {"modelVersion": model, "responseId": f"sim-{self._n_answers}"}
        if word == "blocked":
            return [{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
                     "usageMetadata": {"promptTokenCount": N_PROMPT, "totalTokenCount": N_PROMPT}, **head}]
        parts = list(self._answer_parts(request, model, word))
        reason = {"length": "MAX_TOKENS", "safety": "SAFETY", "broken": "MALFORMED_FUNCTION_CALL"}.get(word, "STOP")
        if word == "broken":
            parts = []
        chunks = [{"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0}],
                   "usageMetadata": {"promptTokenCount": N_PROMPT, "totalTokenCount": N_PROMPT}, **head} for part in parts]
        last = chunks[-1] if chunks else {"candidates": [{"index": 0}], **head}
        last["candidates"][0]["finishReason"] = reason
        last["usageMetadata"] = _usage(request, parts)
        return chunks or [last]

    def _answer_parts(self, request: GeminiApiRequest, model: str, word: str) -> Iterator[Json]:
        thinking = request.generation_config.thinking_config
        if thinking is not None and thinking.include_thoughts:
            yield {"text": THOUGHT, "thought": True}
        is_signing = _CHECKS_SIGNATURES.match(model) is not None
        signature = b64encode(f"signed {self._n_answers}".encode()).decode()
        self._issued.add(signature)
        calls = list(_calls(request, word))
        for number, (name, arguments) in enumerate(calls):
            call: Json = {"name": name, "args": arguments}
            if is_signing:
                call["id"] = f"sim{self._n_answers}x{number}"
            yield {"functionCall": call, **({"thoughtSignature": signature} if is_signing and not number else {})}
        if not calls:
            yield from ({"text": text} for text in _texts(request))
            if is_signing:
                yield {"text": "", "thoughtSignature": signature}


def _embed(body: bytes) -> Json:
    """A vector of two numbers for each text, its length and 0.5; more if the request has their number."""
    try:
        request = msgspec.convert(spell_names(msgspec.json.decode(body)), GeminiApiEmbeddings)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise GeminiRefusal(400, f"Invalid JSON payload received. {error}") from None
    return {"embeddings": [{"values": [len(one.content.parts[0].text or ""),
                                       *[0.5] * ((one.output_dimensionality or 2) - 1)]} for one in request.requests]}


def _word(request: GeminiApiRequest) -> str:
    """The word in brackets in the last text."""
    texts = [part.text for part in request.contents[-1].parts if part.text]
    found = _WORD.search(texts[-1]) if texts else None
    return found[1] if found is not None else ""


def _is_filled(part: GeminiApiPart) -> bool:
    others = (part.inline_data, part.file_data, part.function_call, part.function_response, part.thought_signature)
    return bool(part.text) or any(other is not None for other in others)


def _refuse(word: str) -> None:
    retry = {"@type": f"{_RPC}RetryInfo", "retryDelay": f"{RETRY_S}s"}
    if word in ("429", "daily"):
        period = "Day" if word == "daily" else "Minute"
        violation = {"quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
                     "quotaId": f"GenerateRequestsPer{period}PerProjectPerModel-FreeTier", "quotaValue": "10"}
        raise GeminiRefusal(429, "You exceeded your current quota, please check your plan and billing details.",
                            {"@type": f"{_RPC}QuotaFailure", "violations": [violation]}, retry)
    if word == "503":
        raise GeminiRefusal(503, "The model is overloaded. Please try again later.", retry)


def _calls(request: GeminiApiRequest, word: str) -> Iterator[tuple[str, Json]]:
    """The calls that this request provokes: names and arguments."""
    config = (request.tool_config or GeminiApiToolConfig()).function_calling_config or GeminiApiCalling()
    names = [function.name for tool in request.tools or () for function in tool.function_declarations
             if config.allowed_function_names is None or function.name in config.allowed_function_names]
    n_calls = {"tool": 1, "args": 1, "tools": 2}.get(word, int(config.mode == "ANY")) if config.mode != "NONE" else 0
    for number in range(n_calls if names else 0):
        nested: Json = {"list": [1, 2.5, None, {"deep": True}]} if word == "args" else {}
        yield names[number % len(names)], {"city": ("Oslo", "Köln")[number], **nested}


def _texts(request: GeminiApiRequest) -> tuple[str, ...]:
    config = request.generation_config
    results = [part.function_response.response for part in request.contents[-1].parts if part.function_response is not None]
    if config.response_mime_type == "application/json":
        return (msgspec.json.encode(_sample(config.response_json_schema or {"type": "object"})).decode(),)
    if results:
        return ("The tools answered ", msgspec.json.encode(results).decode(), ".")
    return PIECES


def _sample(schema: Mapping[str, Any]) -> object:
    """A value that fits a simple JSON schema."""
    match schema.get("type"):
        case "object":
            return {name: _sample(of) for name, of in schema.get("properties", {}).items()}
        case "array":
            return [_sample(schema.get("items", {}))]
        case "integer" | "number":
            return 21
        case "boolean":
            return True
    return "Oslo"


def _usage(request: GeminiApiRequest, parts: list[Json]) -> Json:
    n_answer = N_A_PIECE * sum(not part.get("thought") for part in parts)
    n_thoughts = N_THOUGHTS * sum(part.get("thought") is True for part in parts)
    counts: Json = {"promptTokenCount": N_PROMPT, "totalTokenCount": N_PROMPT + n_answer + n_thoughts}
    counts |= {"candidatesTokenCount": n_answer} if n_answer else {}
    counts |= {"thoughtsTokenCount": n_thoughts} if n_thoughts else {}
    return counts | ({"cachedContentTokenCount": N_CACHED} if request.cached_content is not None else {})


def _stream(chunks: list[Json], word: str) -> GeminiReply:
    ending: Ending = "clean"
    if word in ("truncated", "cut", "hang", "error"):
        chunks = chunks[:2]
        for chunk in chunks:
            chunk["candidates"][0].pop("finishReason", None)
        ending = "clean" if word in ("truncated", "error") else "cut" if word == "cut" else "hang"
    if word == "error":
        refusal = GeminiRefusal(503, "The model is overloaded. Please try again later.")
        chunks = [chunks[0], refusal.to_error()]
    return GeminiReply(200, tuple(b"data: " + msgspec.json.encode(chunk) + b"\r\n\r\n" for chunk in chunks), True, ending)


def _join(chunks: list[Json]) -> Json:
    """The whole answer that a stream carries: adjacent texts are one part."""
    whole = chunks[-1]
    if "candidates" not in whole:
        return whole
    parts: list[Json] = []
    for chunk in chunks:
        for part in chunk["candidates"][0].get("content", {}).get("parts", ()):
            before = parts[-1] if parts else {}
            if "text" in part and "text" in before and part.get("thought") == before.get("thought"):
                parts[-1] = {**before, **part, "text": before["text"] + part["text"]}
            else:
                parts.append(part)
    whole["candidates"][0]["content"] = {"parts": parts, "role": "model"}
    return whole
