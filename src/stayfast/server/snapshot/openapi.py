"""The endpoints of snapshots in the OpenAPI document."""

from collections.abc import Mapping
from typing import Any

import msgspec

from stayfast.core.prompt_versions import PromptList, PromptReport
from stayfast.core.snapshot import LiveFrame, Snapshot
from stayfast.server.paths import FINDINGS, HISTORY, LIVE, PROMPTS, SNAPSHOT
from stayfast.server.snapshot.findings import FindingsPage

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
_FRAMES: Json = {
    "type": "object", "required": ["frames"],
    "properties": {"frames": {"type": "array", "items": {"$ref": _REF.format(name="LiveFrame")}}},
}
_SECONDS: Json = {"name": "seconds", "in": "query", "description": "How far back.",
                  "schema": {"type": "number", "minimum": 1, "maximum": 3600, "default": 900}}
_LAST_ID: Json = {"name": "last-event-id", "in": "header", "description": "The frame that the client already has.",
                  "schema": {"type": "integer", "minimum": 0}}
_AT: Json = {"name": "at", "in": "query", "description": "Seconds since the epoch: the last stored snapshot up to then.",
             "schema": {"type": "number", "minimum": 0, "maximum": 1e11}}
_LIST: Json = {"name": "list", "in": "query", "description": "The times of stored snapshots.", "schema": {"const": "true"}}
_DIGITS: Json = {"type": "string", "pattern": "^[0-9a-fA-F]{6,64}$"}
_PROMPT: Json = {"name": "id", "in": "path", "required": True, "schema": _DIGITS}
_AGAINST: Json = {"name": "against", "in": "query", "schema": _DIGITS,
                  "description": "The version to compare with; by default the one before it."}
_SILENT = {"503": "The worker that collects the figures does not answer; try again."}


def snapshot_schemas() -> Json:
    """Schemas by name."""
    kinds = [Snapshot, LiveFrame, FindingsPage, PromptList, PromptReport]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    return {**schemas, "Frames": _FRAMES}


def snapshot_paths(refused: Mapping[str, str]) -> Json:
    """refused: descriptions of 400, 401, 403, 404 and 429."""
    usual = {status: text for status, text in refused.items() if status != "404"} | _SILENT
    return {
        SNAPSHOT: {"get": _operation(
            "snapshot", "What all workers do now and did in the last hour, for admins; or a stored snapshot.",
            usual | {"404": "None is stored of that time."},
            {"application/json": {"schema": {"anyOf": [{"$ref": _REF.format(name="Snapshot")}, {"type": "object"}]}}},
            _AT, _LIST)},
        FINDINGS: {"get": _operation("findings", "What the checks find now, for admins.", usual, _json("FindingsPage"))},
        PROMPTS: {"get": _operation("prompts", "Versions of system prompts in the last hour, for admins.", usual,
                                    _json("PromptList"))},
        f"{PROMPTS}/{{id}}": {"parameters": [_PROMPT], "get": _operation(
            "prompt", "One version, and its difference from another; texts only if the settings show them. For admins.",
            usual | {"404": "No version has this id."}, _json("PromptReport"), _AGAINST)},
        HISTORY: {"get": _operation("live_history", "Earlier frames, one for each 5 seconds, for admins.", usual,
                                    _json("Frames"), _SECONDS)},
        LIVE: {"get": _operation("live", "A frame a second as server-sent events, until the client leaves; for admins.",
                                 usual, {"text/event-stream": {}}, _LAST_ID)},
    }


def _json(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": _REF.format(name=schema)}}}


def _operation(name: str, summary: str, refused: Mapping[str, str], content: Json, *parameters: Json) -> Json:
    responses: Json = {status: {"description": text, "content": _json("Error")} for status, text in refused.items()}
    return {"operationId": name, "summary": summary, "parameters": list(parameters),
            "responses": {"200": {"description": "OK", "content": content}} | responses}
