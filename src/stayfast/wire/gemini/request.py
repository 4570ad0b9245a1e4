"""Encodes the normal form as a generateContent request; its path names the model.

Function calls and their results are matched by order and name. Ids that the gateway made, because Gemini sent none, are not
sent back. Of the first call of each turn Gemini 3 requires the signature that it sent with it; a call without one, which
another provider made, gets Google's documented value for that case.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from stayfast.core import conversation as normal
from stayfast.core.types import Api
from stayfast.wire.dialect import (
    Json,
    decode_tool_arguments,
    drop_none,
    join_adjacent_messages,
    no_content_error,
    untranslatable_field,
)
from stayfast.wire.signatures import NO_SIGNATURE, read_marked_signature

MADE_ID: Final = "call_sf_"  # prefix of ids that the gateway made
JSON_TYPE: Final = "application/json"
_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY", "named": "ANY"}
_TIERS: Final = {"default": "standard", "standard": "standard", "standard_only": "standard", "flex": "flex",
                 "priority": "priority"}
_BUDGETS: Final = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 24_576,
                   "max": 24_576}  # tokens; as Google's OpenAI endpoint maps them
_LEVELS: Final = {"none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH",
                  "xhigh": "HIGH", "max": "HIGH"}
_BEFORE_3: Final = re.compile(r"(?:.*/)?gemini-[12](?!\d)")  # thinks by budget, and does not check signatures
_MEDIA_TYPES: Final = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp",
                       "heic": "image/heic", "heif": "image/heif", "gif": "image/gif", "pdf": "application/pdf"}
_EXTENSION: Final = re.compile(r"\.([a-z]{3,4})(?:[?#].*)?$", re.IGNORECASE)
_OBJECT: Final = msgspec.json.Decoder(normal.RawObject)


def encode_body(request: normal.Conversation, model: str, *, stream: bool) -> Json:
    """Encode as a generateContent request; streamed or not, the body is the same.

    System messages move to the front. Drops hints: verbosity, user, metadata, prompt-cache key, `parallel_tool_calls`,
    `strict` and the name of an output format, an image's detail, thinking of earlier turns except its signature. Raises
    Rejected.
    """
    options = request.google or normal.GoogleOptions()
    system = [*request.system, *(message.text for message in request.messages if message.role == "system")]
    optional: Json = {
        "systemInstruction": {"parts": [{"text": "\n\n".join(system)}], "role": "user"} if any(system) else None,
        "tools": [{"functionDeclarations": [drop_none({
            "name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters or None})
            for tool in request.tools]}] if request.tools else None,
        "toolConfig": _encode_choice(request),
        "generationConfig": _encode_config(request, options, model) or None,
        "safetySettings": list(options.safety_settings) or None,
        "cachedContent": options.cached_content,
        "serviceTier": _TIERS.get(request.service_tier or ""),
    }
    return {"contents": _encode_contents(request, is_before_3=_BEFORE_3.match(model) is not None), **drop_none(optional)}


def _encode_choice(request: normal.Conversation) -> Json | None:
    choice = request.tool_choice
    if choice is None or not request.tools:
        return None
    config: Json = {"mode": _MODES[choice.mode]}
    if choice.mode == "named":
        config["allowedFunctionNames"] = [choice.name]
    return {"functionCallingConfig": config}


def _encode_config(request: normal.Conversation, options: normal.GoogleOptions, model: str) -> Json:
    sampling, output = request.sampling, request.output_format
    return drop_none({
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "topK": sampling.top_k,
        "maxOutputTokens": request.max_output_tokens,
        "stopSequences": list(request.stop) or None,
        "seed": sampling.seed,
        "presencePenalty": sampling.presence_penalty,
        "frequencyPenalty": sampling.frequency_penalty,
        "responseMimeType": JSON_TYPE if output is not None else None,
        "responseJsonSchema": output.schema if output is not None else None,
        "thinkingConfig": _encode_thinking(request, options, model) or None,
    })


def _encode_thinking(request: normal.Conversation, options: normal.GoogleOptions, model: str) -> Json:
    """Google's own options take precedence over an effort. Clients that set an effort get the thoughts."""
    effort = request.effort
    has_effort = effort in _LEVELS
    fields: Json = {"includeThoughts": options.include_thoughts if options.include_thoughts is not None
                    else True if has_effort and effort != "none" and request.api is not Api.COMPLETIONS else None}
    if options.thinking_budget is not None or options.thinking_level is not None:
        fields |= {"thinkingBudget": options.thinking_budget,
                   "thinkingLevel": options.thinking_level.upper() if options.thinking_level is not None else None}
    elif has_effort and _BEFORE_3.match(model):
        fields["thinkingBudget"] = _BUDGETS[effort or ""]
    elif has_effort:
        level = _LEVELS[effort or ""]
        fields["thinkingLevel"] = "LOW" if level == "MINIMAL" and "-pro" in model else level  # Pro has no MINIMAL
    return drop_none(fields)


def _encode_contents(request: normal.Conversation, *, is_before_3: bool) -> list[Json]:
    names: dict[str, str] = {}  # of functions, by the id of the call
    contents: list[Json] = []
    for message in join_adjacent_messages(message for message in request.messages if message.role != "system"):
        if message.role == "assistant":
            parts = _encode_model_parts(message.parts, names, is_before_3=is_before_3)
        else:
            parts = _encode_user_parts(message.parts, names)
        role = "model" if message.role == "assistant" else "user"
        if parts and contents and contents[-1]["role"] == role:  # the message between them has no content
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    if not contents:
        raise no_content_error(request.api, "gemini")
    return contents


def _encode_model_parts(parts: Iterable[normal.Part], names: dict[str, str], *, is_before_3: bool) -> list[Json]:
    encoded: list[Json] = []
    signature: str | None = None  # of the next part
    is_first_call = not is_before_3
    for part in parts:
        match part:
            case normal.Thinking():
                signature = read_marked_signature(part.signature) or signature
            case normal.ToolUse():
                names[part.id] = part.name
                fields = drop_none({"id": _own_id(part.id), "args": decode_tool_arguments(part), "name": part.name})
                signature = part.signature or signature or (NO_SIGNATURE if is_first_call else None)
                encoded.append({"functionCall": fields, **_encode_signature(signature)})
                signature, is_first_call = None, False
            case normal.Text(text=text) if text:
                encoded.append({"text": text, **_encode_signature(signature)})
                signature = None
            case normal.Image():
                encoded.append(_encode_image(part))
    if signature is not None:
        encoded.append({"text": "", **_encode_signature(signature)})
    return encoded


def _encode_signature(signature: str | None) -> Mapping[str, str]:
    return {"thoughtSignature": signature} if signature is not None else {}


def _own_id(call_id: str) -> str | None:
    return None if call_id.startswith(MADE_ID) else call_id


def _encode_user_parts(parts: Iterable[normal.Part], names: Mapping[str, str]) -> list[Json]:
    """Results first: Gemini requires them right after their calls."""
    results: list[Json] = []
    rest: list[Json] = []
    for part in parts:
        match part:
            case normal.ToolResult():
                results.append({"functionResponse": _encode_result(part, names)})
            case normal.Text(text=text) if text:
                rest.append({"text": text})
            case normal.Image():
                rest.append(_encode_image(part))
    return results + rest


def _encode_result(result: normal.ToolResult, names: Mapping[str, str]) -> Json:
    name = names.get(result.tool_use_id)
    if name is None:
        raise untranslatable_field("tool_call_id", "gemini", "no earlier message has the call, whose name Gemini requires")
    images = [_encode_image(part) for part in result.parts if isinstance(part, normal.Image)]
    text = "".join(part.text for part in result.parts if isinstance(part, normal.Text))
    return drop_none({"id": _own_id(result.tool_use_id), "name": name,
                      "response": {"error": text} if result.is_error else _read_object(text) or {"output": text},
                      "parts": images or None})


def _read_object(text: str) -> Mapping[str, Any] | None:
    """A result that is the text of a JSON object; None for other results."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return _OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _encode_image(image: normal.Image) -> Json:
    if image.url is None:
        return {"inlineData": {"data": image.data, "mimeType": image.media_type}}
    found = _EXTENSION.search(image.url)
    media_type = _MEDIA_TYPES.get(found[1].lower()) if found is not None else None
    return {"fileData": drop_none({"fileUri": image.url, "mimeType": media_type})}
