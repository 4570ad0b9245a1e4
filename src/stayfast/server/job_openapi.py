"""The part of the OpenAPI document about jobs and background responses."""

from collections.abc import Mapping
from typing import Any

from stayfast.core.types import Api
from stayfast.policy.admission.priority import Urgency
from stayfast.wire.jobs.job_objects import MAX_PAIRS, MAX_WAIT_S, PATHS

Json = dict[str, Any]

_ID: Json = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_REFUSED = {"400": "A parameter or field is malformed.", "401": "The key is missing or unknown.", "403": "Not allowed.",
            "404": "Unknown, expired, or of another key.", "429": "Too many requests without a valid key.",
            "503": "The store of jobs cannot be reached; see Retry-After."}
_STATE = {"409": "The job is in another state."}
SCHEMAS: Json = {
    "Job": {"type": "object", "required": ["id", "object", "status", "endpoint", "model"],
            "properties": {"id": {"type": "string"}, "object": {"const": "job"}, "status": {"type": "string"},
                           "place": {"type": ["integer", "null"]}, "result": {"type": ["object", "null"]},
                           "error": {"type": ["object", "null"]}}},
    "Jobs": {"type": "object", "required": ["object", "data", "has_more"],
             "properties": {"object": {"const": "list"}, "has_more": {"type": "boolean"},
                            "data": {"type": "array", "items": {"$ref": "#/components/schemas/Job"}}}},
    "BackgroundResponse": {"type": "object", "required": ["id", "object", "status", "output"],
                           "properties": {"object": {"const": "response"}, "output": {"type": "array"}}},
    "DeletedJob": {"type": "object", "required": ["id", "object", "deleted"],
                   "properties": {"deleted": {"const": True}}},
}


def job_paths(bodies: Mapping[Api, Json], error: Json) -> Json:
    """The paths. bodies: the schemas of all endpoints' requests. error: the schema of an error."""

    def operate(name: str, summary: str, schema: str, more: Mapping[str, str] | None = None) -> Json:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
        refused = {status: {"description": text, "content": {"application/json": {"schema": error}}}
                   for status, text in {**_REFUSED, **(more or {})}.items()}
        return {"operationId": name, "summary": summary,
                "responses": {"200": {"description": "OK", "content": content}} | refused}

    submit = operate("submit_job", "Submit a job: any endpoint's body.", "Job",
                     {"409": "The idempotency key belongs to another job.", "413": "The body is too large.",
                      "408": "The request did not arrive in time."})
    submit["responses"]["202"] = submit["responses"]["200"]
    submit["requestBody"] = {"required": True, "content": {"application/json": {"schema": {
        "oneOf": [_submission(PATHS[api], schema) for api, schema in bodies.items()]}}}}
    result = operate("job_result", "A job's answer, with its status.", "Job", _STATE)
    result["responses"]["200"]["content"] = {"application/json": {}, "text/event-stream": {}}
    events = operate("job_events", "A job's stream, after `last-event-id` or `after`.", "Job",
                     {"410": "This part is no longer stored."})
    events["responses"]["200"]["content"] = {"text/event-stream": {}}
    retrieve = operate("background_response", "A background response, or its stream.", "BackgroundResponse",
                       {"410": "This part is no longer stored."})
    retrieve["responses"]["200"]["content"]["text/event-stream"] = {}
    return {
        "/v1/jobs": {"post": submit, "get": operate("jobs", "The key's jobs, newest first.", "Jobs")},
        "/v1/jobs/{id}": {"parameters": [_ID], "get": operate("job", "One job.", "Job"),
                          "delete": operate("delete_job", "Delete an ended job.", "DeletedJob", _STATE)},
        "/v1/jobs/{id}/result": {"parameters": [_ID], "get": result},
        "/v1/jobs/{id}/events": {"parameters": [_ID], "get": events},
        "/v1/jobs/{id}/cancel": {"parameters": [_ID], "post": operate("cancel_job", "Cancel a job.", "Job")},
        "/v1/responses/{id}": {"parameters": [_ID], "get": retrieve, "delete": operate(
            "delete_response", "Delete a background response.", "DeletedJob", _STATE)},
        "/v1/responses/{id}/cancel": {"parameters": [_ID], "post": operate(
            "cancel_response", "Cancel a background response.", "BackgroundResponse")},
    }


def _submission(path: str, body: Json) -> Json:
    text: Json = {"type": "string", "maxLength": 512}
    return {"type": "object", "required": ["endpoint", "body"], "additionalProperties": False, "properties": {
        "endpoint": {"const": path}, "body": body,
        "deadline": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MAX_WAIT_S},
        "run_at": {"type": ["number", "null"], "minimum": 0, "maximum": 1e11},
        "priority": {"enum": [*Urgency, None]},
        "metadata": {"type": ["object", "null"], "maxProperties": MAX_PAIRS, "propertyNames": {"maxLength": 64},
                     "additionalProperties": text}}}
