"""The part of the OpenAPI document about files, batches, message batches, and jobs and webhooks for admins."""

from collections.abc import Mapping
from typing import Any

from stayfast.core.jobs import JobState
from stayfast.wire.jobs.files import UPLOADED
from stayfast.wire.jobs.lines import ENDPOINTS

Json = dict[str, Any]

_TEXT: Json = {"type": "string", "minLength": 1}
_ID: Json = {"name": "id", "in": "path", "required": True, "schema": _TEXT}
_REFUSED = {"400": "A parameter or field is malformed.", "401": "The key is missing or unknown.", "403": "Not allowed.",
            "404": "Unknown, expired, or of another key.", "429": "Too many jobs, or too many requests without a valid key.",
            "503": "The store of jobs cannot be reached; see Retry-After."}
_STATE = {"409": "It is in another state."}
_CREATION = {"408": "The request did not arrive in time.", "409": "The idempotency key belongs to another request.",
             "413": "The body is too large."}
_INTEGER: Json = {"type": "integer"}


def _list_of(name: str) -> Json:
    return {"type": "object", "required": ["data"], "properties": {
        "data": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}, "has_more": {"type": "boolean"}}}


SCHEMAS: Json = {
    "File": {"type": "object", "required": ["id", "object", "bytes", "created_at", "filename", "purpose"],
             "properties": {"object": {"const": "file"}, "bytes": _INTEGER, "created_at": _INTEGER}},
    "Files": _list_of("File"),
    "Batch": {"type": "object", "required": ["id", "object", "endpoint", "input_file_id", "status", "request_counts"],
              "properties": {"object": {"const": "batch"}, "status": {"type": "string"}}},
    "Batches": _list_of("Batch"),
    "MessageBatch": {"type": "object", "required": ["id", "type", "processing_status", "request_counts"],
                     "properties": {"type": {"const": "message_batch"}}},
    "MessageBatches": _list_of("MessageBatch"),
    "Deleted": {"type": "object", "required": ["id"]},
    "QueuedJob": {"type": "object", "required": ["id"]},
    "QueuedJobs": _list_of("QueuedJob"),
    "Webhook": {"type": "object", "required": ["id", "subject", "status", "created_at", "attempts", "next_at", "why"],
                "properties": {"status": {"enum": ["failed", "waiting"]}}},
    "Webhooks": _list_of("Webhook"),
}


def batch_paths(error: Json, error_of_messages: Json) -> Json:
    """The paths. error, error_of_messages: the schemas of an error in both dialects."""

    def operate(name: str, summary: str, schema: str, more: Mapping[str, str] | None = None, *,
                queries: Mapping[str, Json] | None = None) -> Json:
        shape = error_of_messages if "message" in name else error
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
        refused = {status: {"description": text, "content": {"application/json": {"schema": shape}}}
                   for status, text in {**_REFUSED, **(more or {})}.items()}
        operation: Json = {"operationId": name, "summary": summary,
                           "responses": {"200": {"description": "OK", "content": content}} | refused}
        if queries:
            operation["parameters"] = [{"name": query, "in": "query", "schema": kind} for query, kind in queries.items()]
        return operation

    def limit(most: int) -> Json:
        return {"type": "integer", "minimum": 1, "maximum": most}

    content = operate("file_content", "A file's contents.", "File")
    content["responses"]["200"]["content"] = {"application/octet-stream": {}}
    results = operate("message_batch_results", "The results, one a line, once the batch has ended.", "MessageBatch", _STATE)
    results["responses"]["200"]["content"] = {"application/x-jsonl": {}}
    create_batch = operate("create_batch", "Start a batch of an uploaded file.", "Batch", _CREATION)
    create_batch["requestBody"] = {"required": True, "content": {"application/json": {"schema": {
        "type": "object", "required": ["input_file_id", "endpoint", "completion_window"], "properties": {
            "input_file_id": _TEXT, "endpoint": {"enum": list(ENDPOINTS)}, "completion_window": {"const": "24h"}}}}}}
    upload = operate("upload_file", "Upload a file.", "File",
                     _CREATION | {"415": "The content type is not multipart/form-data."})
    upload["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": {
        "type": "object", "required": ["file", "purpose"], "properties": {
            "file": {"type": "string", "format": "binary"}, "purpose": {"enum": list(UPLOADED)}}}}}}
    create_messages = operate("create_message_batch", "Start a batch of messages.", "MessageBatch", _CREATION)
    create_messages["requestBody"] = {"required": True, "content": {"application/json": {"schema": {
        "type": "object", "required": ["requests"], "properties": {"requests": {
            "type": "array", "minItems": 1, "items": {"type": "object", "required": ["custom_id", "params"], "properties": {
                "custom_id": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
                "params": {"$ref": "#/components/schemas/MessagesRequest"}}}}}}}}}
    states = {"type": "string", "enum": [state.value for state in JobState]}
    return {
        "/v1/files": {"post": upload,
                      "get": operate("files", "The key's files.", "Files", queries={"limit": limit(10_000)})},
        "/v1/files/{id}": {"parameters": [_ID], "get": operate("file", "One file.", "File"),
                           "delete": operate("delete_file", "Delete a file.", "Deleted")},
        "/v1/files/{id}/content": {"parameters": [_ID], "get": content},
        "/v1/batches": {"post": create_batch, "get": operate("batches", "The key's batches, newest first.", "Batches",
                                                             queries={"limit": limit(100)})},
        "/v1/batches/{id}": {"parameters": [_ID], "get": operate("batch", "One batch.", "Batch")},
        "/v1/batches/{id}/cancel": {"parameters": [_ID],
                                    "post": operate("cancel_batch", "Cancel a batch.", "Batch", _STATE)},
        "/v1/messages/batches": {"post": create_messages, "get": operate(
            "message_batches", "The key's message batches, newest first.", "MessageBatches",
            queries={"limit": limit(1000)})},
        "/v1/messages/batches/{id}": {"parameters": [_ID], "get": operate("message_batch", "One batch.", "MessageBatch"),
                                      "delete": operate("delete_message_batch", "Delete an ended batch.", "Deleted",
                                                        _STATE)},
        "/v1/messages/batches/{id}/cancel": {"parameters": [_ID], "post": operate(
            "cancel_message_batch", "Cancel a batch.", "MessageBatch", _STATE)},
        "/v1/messages/batches/{id}/results": {"parameters": [_ID], "get": results},
        "/admin/jobs": {"get": operate("all_jobs", "The jobs of all keys, and the queue's depth; for admins.", "QueuedJobs",
                                       queries={"state": states, "limit": limit(1000)})},
        "/admin/jobs/{id}": {"parameters": [_ID], "get": operate("any_job", "One job, without its text; for admins.",
                                                                 "QueuedJob")},
        "/admin/jobs/{id}/retry": {"parameters": [_ID], "post": operate(
            "retry_job", "Queue an ended job without an answer again; for admins.", "QueuedJob", _STATE)},
        "/admin/jobs/{id}/cancel": {"parameters": [_ID], "post": operate("cancel_any_job", "Cancel a job; for admins.",
                                                                         "QueuedJob")},
        "/admin/webhooks": {"get": operate("webhooks", "Webhooks that failed or wait; for admins.", "Webhooks")},
        "/admin/webhooks/{id}/retry": {"parameters": [_ID], "post": operate(
            "retry_webhook", "Send a failed webhook again; for admins.", "Webhook")},
    }
