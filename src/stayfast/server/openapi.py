"""The OpenAPI 3.1 document, built on request. Schemas of request bodies are derived from the types that decode them."""

from typing import Any

import msgspec

from stayfast.core.types import Api
from stayfast.observe.waterfall import RequestSummary, Waterfall
from stayfast.server.batch_openapi import SCHEMAS as BATCH_SCHEMAS
from stayfast.server.batch_openapi import batch_paths
from stayfast.server.classify.openapi import classify_paths, classify_schemas
from stayfast.server.job_openapi import SCHEMAS as JOB_SCHEMAS
from stayfast.server.job_openapi import job_paths
from stayfast.server.key_openapi import SCHEMAS as KEY_SCHEMAS
from stayfast.server.key_openapi import key_paths
from stayfast.server.paths import (
    CACHE,
    CONVERSATIONS,
    GATEWAYS,
    HEALTH,
    LLM_PATHS,
    MAX_LISTED,
    REQUESTS,
    SCALING,
    SETTINGS,
    STATE,
    TRAFFIC,
    UPSTREAMS,
)
from stayfast.server.requests_query import LISTS, OUTCOMES
from stayfast.server.snapshot.openapi import snapshot_paths, snapshot_schemas
from stayfast.wire.chat.request import ChatRequest, CompletionsRequest, EmbeddingsRequest
from stayfast.wire.messages.request import CountRequest, MessagesRequest
from stayfast.wire.rerank import RerankRequest
from stayfast.wire.responses.request import InputTokensRequest, ResponsesRequest
from stayfast.wire.token_counts import TokenizeRequest

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_BODIES: dict[Api, tuple[type, str]] = {
    Api.CHAT: (ChatRequest, "Answer a conversation (OpenAI chat completions)."),
    Api.COMPLETIONS: (CompletionsRequest, "Continue a text (OpenAI completions)."),
    Api.EMBEDDINGS: (EmbeddingsRequest, "Turn texts into vectors (OpenAI embeddings)."),
    Api.RERANK: (RerankRequest, "Order documents by relevance to a query (Cohere, Jina, vLLM)."),
    Api.RESPONSES: (ResponsesRequest, "Answer with items (OpenAI responses)."),
    Api.MESSAGES: (MessagesRequest, "Answer a conversation (Anthropic messages)."),
    Api.COUNT_TOKENS: (CountRequest, "Count a conversation's tokens (Anthropic)."),
    Api.INPUT_TOKENS: (InputTokensRequest, "Count the tokens of a response's input (OpenAI)."),
    Api.TOKENIZE: (TokenizeRequest, "Count the tokens of a text or a conversation (vLLM)."),
}
_REFUSALS = {
    "400": "The request is malformed; the error names the field.",
    "401": "The key is missing or unknown.",
    "403": "The key's scopes do not allow it, a web page of another site made the request, or the host header does not name "
           "this machine.",
    "404": "Unknown model.",
    "408": "The request did not arrive in time.",
    "409": "A request with this idempotency-key is running, and its answer cannot be shared.",
    "413": "The body is too large.",
    "415": "The content type is not JSON.",
    "422": "The upstream refused the request, or this idempotency-key was used with another body. Other 4xx of the "
           "upstream are passed on with their own status.",
    "429": "A quota is used up, or there were too many requests without a valid key; see Retry-After.",
    "431": "The head is too large.",
}
_FAILURES = {
    "500": "Internal error of the gateway.",
    "502": "The upstream failed.",
    "503": "No capacity, or shutting down; see Retry-After.",
    "504": "The deadline passed; the error names the stage in which it passed.",
}
_OVERLOADED = {"529": "The upstream is overloaded (Anthropic's status)."}
_HEADERS: Json = {
    "x-request-id": {"description": "The request's id.", "schema": {"type": "string"}},
    "server-timing": {"description": "Time spent in each stage.", "schema": {"type": "string"}},
    "x-stayfast-upstream": {"description": "The upstream that answered.", "schema": {"type": "string"}},
    "x-stayfast-attempts": {"description": "Number of upstream calls.", "schema": {"type": "string"}},
    "x-stayfast-degraded": {"description": "fallback, tier, stale, template, partial, trimmed (turns left out) or capped.",
                            "schema": {"type": "string"}},
    "x-stayfast-guard": {"description": "flag, and the rule of the route's guard that matched.",
                         "schema": {"type": "string"}},
    "x-cache": {"description": "hit, stale, miss, coalesced or bypass, with kind, age, key, reason; on routes with a cache.",
                "schema": {"type": "string"}},
}
_PARAMETERS: list[Json] = [
    {"name": "x-request-timeout", "in": "header", "description": "Seconds that the client waits for the response.",
     "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400}},
    {"name": "x-stayfast-keepalive", "in": "header", "description": "`off`: no comments before the first token.",
     "schema": {"type": "string"}},
]
_ERROR: Json = {
    "type": "object", "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message", "type"], "properties": {
        "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null", "integer"]}}}},
}
_ERROR_OF_MESSAGES: Json = {
    "type": "object", "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "required": ["type", "message"],
                  "properties": {"type": {"type": "string"}, "message": {"type": "string"}}},
        "request_id": {"type": "string"}},
}
_MODEL: Json = {
    "type": "object", "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
                   "owned_by": {"type": "string"}},
}
_MODELS: Json = {
    "type": "object", "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": _REF.format(name="Model")}}},
}
_HEALTH: Json = {
    "type": "object", "required": ["status"],
    "properties": {"status": {"type": "string"}, "reason": {"type": "string"}},
}
_REQUESTS: Json = {
    "type": "object", "required": ["object", "data"],
    "properties": {"object": {"const": "list"},
                   "data": {"type": "array", "items": {"$ref": _REF.format(name="RequestSummary")}}},
}
_STATE: Json = {
    "type": "object", "required": ["upstreams"],
    "properties": {"worker": {"type": "integer"},
                   "upstreams": {"type": "object", "additionalProperties": {"type": "object"}},
                   "routes": {"type": "object", "additionalProperties": {"type": "object"}},
                   "admission": {"type": "object"}, "prefix": {"type": "object"}},
}
_CACHES: Json = {
    "type": "object", "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {
        "type": "object", "required": ["route", "store", "requests", "kinds"],
        "properties": {"route": {"type": "string"}, "store": {"type": "object"}, "requests": {"type": "object"},
                       "without_a_call": {"type": ["number", "null"]}, "kinds": {"type": "object"},
                       "error": {"type": ["object", "null"]}, "semantic": {"type": ["object", "null"]}}}}},
}
_FORGOTTEN: Json = {
    "type": "object", "required": ["forgotten", "gone"],
    "properties": {"forgotten": {"type": "integer"}, "gone": {"type": "array", "items": {"type": "string"}},
                   "unconfirmed": {"type": "array", "items": {"type": "string"}}},
}
_DELETED: Json = {
    "type": "object", "required": ["deleted", "gone", "unconfirmed"],
    "properties": {"deleted": {"type": "integer"}, "gone": {"type": "array", "items": {"type": "string"}},
                   "unconfirmed": {"type": "array", "items": {"type": "string"}}},
}
_CONVERSATIONS: Json = {
    "type": "object", "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {
        "type": "object", "required": ["route", "mode", "requests", "summaries"],
        "properties": {"route": {"type": "string"}, "mode": {"type": "string"}, "store": {"type": ["string", "null"]},
                       "summaries_in_memory": {"type": ["integer", "null"]},
                       "bytes_in_memory": {"type": ["integer", "null"]},
                       "running": {"type": "integer"}, "saved_tokens": {"type": "integer"}, "requests": {"type": "object"},
                       "summaries": {"type": "object"}, "refused_by_rule": {"type": "object"}}}}},
}
_TRAFFIC: Json = {
    "type": "object", "required": ["columns", "rows"],
    "properties": {"columns": {"type": "array", "items": {"type": "string"}},
                   "trial_columns": {"type": "array", "items": {"type": "string"}},
                   "rows": {"type": "array", "items": {"type": "array"}}},
}
_SCALING: Json = {
    "type": "object", "required": ["pools"],
    "properties": {"pools": {"type": "object", "additionalProperties": {
        "type": "object", "required": ["queue", "running", "replicas_wanted", "why", "fresh_s"],
        "properties": {"queue": {"type": "integer"}, "running": {"type": "integer"}, "n_replicas": {"type": "integer"},
                       "n_ready": {"type": "integer"}, "replicas_wanted": {"type": "integer"}, "why": {"type": "string"},
                       "cold_start_s": {"type": "number"}, "fresh_s": {"type": "number"},
                       **{name: {"type": ["number", "null"]} for name in ("engine_queue", "wait_p95_s", "backlog_s",
                                                                          "saturation", "kv_used_ratio", "slo_miss")}}}}},
}
_DRAINED: Json = {
    "type": "object", "required": ["upstream", "draining", "workers", "silent_workers"],
    "properties": {"upstream": {"type": "string"}, "draining": {"type": "boolean"}, "workers": {"type": "integer"},
                   "silent_workers": {"type": "integer"}},
}
_GATEWAYS: Json = {
    "type": "object", "required": ["object", "data", "why_alone", "findings"],
    "properties": {
        "object": {"const": "list"}, "why_alone": {"type": ["string", "null"]},
        "findings": {"type": "array", "items": {"type": "string"}},
        "data": {"type": "array", "items": {"type": "object", "required": ["id", "seen_s_ago", "answers"], "properties": {
            "id": {"type": "string"}, "host": {"type": "string"}, "pids": {"type": "array", "items": {"type": "integer"}},
            "workers": {"type": "integer"}, "version": {"type": "string"}, "since": {"type": "number"},
            "seen_s_ago": {"type": "number"}, "in_flight": {"type": "integer"}, "draining": {"type": "boolean"},
            "config": {"type": "string"}, "breakers": {"type": "array", "items": {"type": "object"}},
            "answers": {"type": "boolean"}}}}},
}
_SETTINGS: Json = {
    "type": "object", "required": ["settings", "sources"],
    "properties": {"settings": {"type": "object", "description": "As in a settings file; secrets are \"(hidden)\"."},
                   "sources": {"type": "object", "additionalProperties": {"type": "string"},
                               "description": "By dotted path, such as stayfast.yaml:12; missing: the default."}},
}
_STORED_ANSWER: Json = {
    "type": "object", "required": ["route", "kept_at", "bytes"],
    "properties": {"route": {"type": "string"}, "tenant": {"type": ["string", "null"]}, "kept_at": {"type": "number"},
                   "drop_at": {"type": ["number", "null"]}, "bytes": {"type": "integer"},
                   "tags": {"type": "array", "items": {"type": "string"}}, "usage": {"type": ["object", "null"]},
                   "finish_reason": {"type": ["string", "null"]}},
}
_FORGETTING: list[Json] = [
    *({"name": name, "in": "query", "description": f"Answers {which}.", "schema": {"type": "string", "minLength": 1}}
      for name, which in (("route", "of this route"), ("tenant", "of this tenant"), ("tag", "with this tag"))),
    {"name": "all", "in": "query", "description": "All answers. This or one of the other parameters is required.",
     "schema": {"const": "true"}}]
_LISTING: list[Json] = [
    {"name": "n", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": 50}},
    {"name": "which", "in": "query", "description": "notable: slow or failed requests, which are kept longer. slowest: by "
     "time to the first token, without one by whole time.", "schema": {"enum": [*LISTS], "default": "all"}},
    *({"name": name, "in": "query", "schema": {"type": "string", "minLength": 1, "maxLength": 200}}
      for name in ("route", "upstream")),
    {"name": "status", "in": "query", "schema": {"type": "string", "pattern": "^[1-5]([0-9]{2}|xx)$"}},
    {"name": "outcome", "in": "query", "schema": {"enum": [*OUTCOMES]}},
    {"name": "since", "in": "query", "description": "Only requests that ended then or later, in seconds since 1970.",
     "schema": {"type": "number", "minimum": 0}},
]
_ABOUT = """\
An LLM gateway that keeps its deadlines. Integers must be written without a fraction: 57.0 is refused where an integer is \
required, although JSON Schema accepts it. The same paths exist under the prefixes /openai and /anthropic. WebSockets, \
which OpenAPI cannot describe: GET /v1/responses, /v1/jobs/ws and /v1/jobs/{id}/ws."""


def _answer_with(name: str, kind: Json, **constant: str) -> Json:
    """The fields that every client of this API reads; upstreams may add others."""
    return {"type": "object", "required": [*constant, name],
            "properties": {name: kind} | {field: {"const": value} for field, value in constant.items()}}


_ANSWERS: dict[Api, Json] = {
    Api.CHAT: _answer_with("choices", {"type": "array", "minItems": 1}, object="chat.completion"),
    Api.COMPLETIONS: _answer_with("choices", {"type": "array", "minItems": 1}, object="text_completion"),
    Api.EMBEDDINGS: _answer_with("data", {"type": "array"}, object="list"),
    Api.RERANK: _answer_with("results", {"type": "array"}),
    Api.RESPONSES: _answer_with("output", {"type": "array"}, object="response"),
    Api.MESSAGES: _answer_with("content", {"type": "array"}, type="message", role="assistant"),
    Api.COUNT_TOKENS: _answer_with("input_tokens", {"type": "integer"}),
    Api.INPUT_TOKENS: _answer_with("input_tokens", {"type": "integer"}, object="response.input_tokens"),
    Api.TOKENIZE: _answer_with("count", {"type": "integer"}),
}


def document(version: str) -> Json:
    schemas, components = msgspec.json.schema_components([body for body, _ in _BODIES.values()],
                                                         ref_template=_REF)
    components["TokenizeRequest"]["oneOf"] = [_given("prompt", "string"), _given("messages", "array")]
    components["ResponsesRequest"]["anyOf"] = [_given("input", ["string", "array"]),
                                              _given("previous_response_id", "string")]
    _, waterfalls = msgspec.json.schema_components([Waterfall, RequestSummary], ref_template=_REF)
    schema_of = dict(zip(_BODIES, schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stayfast", "version": version, "description": _ABOUT},
        "paths": {path: {"post": _hot(api, schema_of[api])} for path, api in LLM_PATHS.items()} | _cold_paths()
        | snapshot_paths({status: _REFUSALS[status] for status in ("400", "401", "403", "404", "429")})
        | job_paths(schema_of, {"$ref": _REF.format(name="Error")})
        | batch_paths({"$ref": _REF.format(name="Error")}, {"$ref": _REF.format(name="MessagesError")})
        | key_paths({"$ref": _REF.format(name="Error")})
        | classify_paths({status: _REFUSALS[status] for status in ("400", "401", "403", "408", "413")},
                         {"$ref": _REF.format(name="Error")}),
        "security": [{}, {"bearer": []}, {"key": []}],
        "components": {
            "schemas": components | {"Error": _ERROR, "MessagesError": _ERROR_OF_MESSAGES, "Model": _MODEL,
                                     "Models": _MODELS, "Health": _HEALTH, "Requests": _REQUESTS,
                                     "State": _STATE, "Settings": _SETTINGS, "Conversations": _CONVERSATIONS,
                                     "Deleted": _DELETED, "Caches": _CACHES, "Gateways": _GATEWAYS,
                                     "Traffic": _TRAFFIC,
                                     "Scaling": _SCALING, "Drained": _DRAINED,
                                     "Forgotten": _FORGOTTEN, **JOB_SCHEMAS, **BATCH_SCHEMAS, **KEY_SCHEMAS,
                                     **snapshot_schemas(), **classify_schemas(),
                                     "Kept": _STORED_ANSWER} | waterfalls,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"},
                                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
        },
    }


def _given(name: str, kind: str | list[str]) -> Json:
    """Requires a field that is not null."""
    return {"required": [name], "properties": {name: {"type": kind}}}


def _cold_paths() -> Json:
    paths: Json = {path: {"get": _cold(path.strip("/"), "Whether the gateway is alive.", "Health", {})}
                   for path in sorted(HEALTH)}
    unready = {"503": "Not ready; the body says why."}
    paths["/readyz"] = {"get": _cold("readyz", "Whether the gateway can serve.", "Health", unready)}
    refused = {status: _REFUSALS[status] for status in ("401", "403", "429")}
    paths["/v1/models"] = {"get": _cold("models", "All models.", "Models", refused)}
    paths["/v1/models/{model}"] = {
        "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
        "get": _cold("model", "One model.", "Model", refused | {"404": _REFUSALS["404"]}),
    }
    paths[REQUESTS] = {"get": _cold("requests", "Recent requests, newest first.", "Requests",
                                    refused | {"400": _REFUSALS["400"]}) | {"parameters": _LISTING}}
    paths[f"{REQUESTS}/{{id}}"] = {
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
        "get": _cold("request", "The timings of one request.", "Waterfall",
                     refused | {"404": "It has expired, or belongs to another client."}),
    }
    paths[CACHE] = {
        "get": _cold("caches", "What the caches of all routes hold and have saved, for admins.", "Caches", refused),
        "delete": _cold("forget", "Remove stored answers that match all parameters, for admins.", "Forgotten",
                        refused | {"400": _REFUSALS["400"]}) | {"parameters": _FORGETTING},
    }
    paths[f"{CACHE}/{{key}}"] = {
        "parameters": [{"name": "key", "in": "path", "required": True,
                        "schema": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}}],
        "get": _cold("kept", "One stored answer, without its text; for admins.", "Kept",
                     refused | {"400": _REFUSALS["400"], "404": "No answer is stored under this key."}),
        "delete": _cold("forget_one", "Remove one stored answer, for admins.", "Forgotten",
                        refused | {"400": _REFUSALS["400"]}),
    }
    paths[CONVERSATIONS] = {"get": _cold("conversations", "What the histories of all routes have done, for admins.",
                                         "Conversations", refused)}
    paths[f"{CONVERSATIONS}/{{id}}"] = {
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
                       {"name": "tenant", "in": "query", "description": "Only of this tenant.",
                        "schema": {"type": "string", "minLength": 1}}],
        "delete": _cold("delete_conversation", "Delete the summaries of a session or conversation.", "Deleted",
                        refused | {"400": _REFUSALS["400"], "404": "There is none."}),
    }
    paths[SETTINGS] = {"get": _cold("settings", "The effective settings, and where each comes from, for admins.", "Settings",
                                    refused)}
    paths[GATEWAYS] = {"get": _cold("gateways", "The gateways that share state, for admins.", "Gateways", refused)}
    paths[TRAFFIC] = {"get": _cold("traffic", "Figures of the requests in memory, newest first, for admins.", "Traffic",
                                   refused)}
    paths[SCALING] = {"get": _cold("scaling", "How many replicas each pool needs, and why, for admins.", "Scaling", refused)}
    for what, summary in (("drain", "Send new requests to other upstreams."), ("undrain", "End a drain.")):
        paths[f"{UPSTREAMS}/{{name}}/{what}"] = {
            "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
            "post": _cold(f"{what}_upstream", summary, "Drained", refused | {"404": "Unknown, or without phases."})}
    paths[STATE] = {"get": _cold("state", "The live state of this process's upstreams, for admins.", "State", refused)}
    responses: Json = {status: _error(description) for status, description in refused.items()}
    responses["200"] = {"description": "OK", "content": {"text/plain": {}}}
    summary = "Metrics for Prometheus, for admins unless the settings say otherwise."
    paths["/metrics"] = {"get": {"operationId": "metrics", "summary": summary, "responses": responses}}
    return paths


def _hot(api: Api, body: Json) -> Json:
    answer: Json = {"application/json": {"schema": _ANSWERS[api]}}
    if api.can_stream:
        answer["text/event-stream"] = {}
    refused = _REFUSALS | _FAILURES | (_OVERLOADED if api.is_anthropic else {})
    error = "MessagesError" if api.is_anthropic else "Error"
    return {
        "operationId": api.value,
        "summary": _BODIES[api][1],
        "parameters": _PARAMETERS,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "The answer, streamed on request.", "headers": _HEADERS, "content": answer}}
        | {status: _error(description, error) for status, description in refused.items()},
    }


def _cold(name: str, summary: str, schema: str, others: dict[str, str]) -> Json:
    content = {"application/json": {"schema": {"$ref": _REF.format(name=schema)}}}
    responses = {status: ({"description": description, "content": content} if schema == "Health" else _error(description))
            for status, description in others.items()}
    return {"operationId": name, "summary": summary,
            "responses": {"200": {"description": "OK", "content": content}} | responses}


def _error(description: str, schema: str = "Error") -> Json:
    return {"description": description, "content": {"application/json": {"schema": {"$ref": _REF.format(name=schema)}}}}
