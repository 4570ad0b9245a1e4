"""The part of the OpenAPI document about stored keys and spend."""

from collections.abc import Mapping
from typing import Any

from stayfast.keys.service import MAX_EXPIRES_S, MAX_GRACE_S, MAX_LISTED
from stayfast.policy.keys.quota_text import LIMITS
from stayfast.server.jobs.admin_spend import GROUPS
from stayfast.stores.jobs.keys import KEEP_SPEND_DAYS

Json = dict[str, Any]
_ID: Json = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_NAME: Json = {"type": "string", "pattern": "^[A-Za-z0-9._@-]{1,64}$"}
_SCOPES: Json = {"type": "array", "maxItems": 20, "items": {
    "type": "string", "pattern": "^(admin|metrics|routes:[A-Za-z0-9._@*/-]{1,128}(,[A-Za-z0-9._@*/-]{1,128}){0,3})$"}}
_QUOTA: Json = {"type": "object", "additionalProperties": False, "properties": {
    name: {"type": "number", "minimum": 1, "maximum": 1e15} for name in LIMITS}}
_EXPIRY: Json = {"type": ["number", "null"], "minimum": 1, "maximum": MAX_EXPIRES_S}
_WHEN: Json = {"type": ["number", "null"]}
_KEY: Json = {
    "type": "object", "required": ["object", "id", "source", "tenant", "name", "state", "scopes", "quota"],
    "properties": {
        "object": {"const": "key"}, "id": {"type": "string"}, "source": {"enum": ["store", "settings"]},
        "tenant": {"type": "string"}, "name": {"type": "string"}, "state": {"enum": ["live", "expired", "revoked"]},
        "scopes": {"type": "array", "items": {"type": "string"}},
        "quota": {"type": "object", "additionalProperties": {"type": "number"}}, "created_by": {"type": "string"},
        **dict.fromkeys(("created_at", "expires_at", "revoked_at", "last_used_at", "old_key_until"), _WHEN),
        "key": {"type": "string", "description": "The key itself: only after its creation or rotation."}},
}
SCHEMAS: Json = {
    "ApiKey": _KEY,
    "ApiKeys": {"type": "object", "required": ["object", "data", "has_more"], "properties": {
        "object": {"const": "list"}, "has_more": {"type": "boolean"},
        "data": {"type": "array", "items": {"$ref": "#/components/schemas/ApiKey"}}}},
    "Spend": {"type": "object", "required": ["object", "from", "to", "by", "data", "total"], "properties": {
        "object": {"const": "spend"}, "data": {"type": "array", "items": {"type": "object"}}, "total": {"type": "object"}}},
}
_REFUSED = {"400": "The request is malformed; the error names the field.", "401": "The key is missing or unknown.",
            "403": "It needs an admin key.", "404": "No stored key has this id.",
            "429": "There were too many requests without a valid key.", "503": "The store is unavailable."}
_CHANGED = {"408": "The request did not arrive in time.", "413": "The body is too large.",
            "409": "The name is taken, the key is revoked, is in the settings file, or there are too many keys."}


def key_paths(error: Json) -> Json:
    """The paths. error: the schema of an error."""
    def operate(name: str, summary: str, schema: str, more: Mapping[str, str] | None = None, *, body: Json | None = None,
                queries: Mapping[str, Json] | None = None) -> Json:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
        refused = {status: {"description": text, "content": {"application/json": {"schema": error}}}
                   for status, text in {**_REFUSED, **(more or {})}.items()}
        operation: Json = {"operationId": name, "summary": f"{summary}; for admins.",
                           "responses": {"200": {"description": "OK", "content": content}} | refused}
        if body is not None:
            operation["requestBody"] = {"required": body is not rotation, "content": {"application/json": {"schema": body}}}
        if queries is not None:
            operation["parameters"] = [{"name": query, "in": "query", "schema": schema} for query, schema in queries.items()]
        return operation

    fields = {"name": _NAME, "scopes": _SCOPES, "quota": _QUOTA, "expires_in_s": _EXPIRY}
    new = {"type": "object", "required": ["tenant", "name"], "additionalProperties": False,
           "properties": fields | {"tenant": _NAME}}
    change = {"type": "object", "additionalProperties": False, "properties": fields}
    rotation = {"type": "object", "additionalProperties": False, "properties": {
        "grace_s": {"type": "number", "minimum": 0, "maximum": MAX_GRACE_S}}}
    text: Json = {"type": "string", "minLength": 1, "maxLength": 200}
    words = "|".join(GROUPS)
    return {
        "/admin/keys": {
            "get": operate("keys", "The keys", "ApiKeys", queries={
                "tenant": text, "after": text, "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED}}),
            "post": operate("create_key", "Make a key, which this answer alone shows", "ApiKey", _CHANGED, body=new)},
        "/admin/keys/{id}": {
            "parameters": [_ID], "get": operate("key", "One key", "ApiKey"),
            "patch": operate("change_key", "Change a key", "ApiKey", _CHANGED, body=change),
            "delete": operate("revoke_key", "End a key at once", "ApiKey", _CHANGED)},
        "/admin/keys/{id}/rotate": {"parameters": [_ID], "post": operate(
            "rotate_key", "A new key under the same id", "ApiKey", _CHANGED, body=rotation)},
        "/admin/spend": {"get": operate("spend", "What requests cost", "Spend", queries={
            "by": {"type": "string", "pattern": f"^({words})(,({words})){{0,4}}$"},
            "days": {"type": "integer", "minimum": 1, "maximum": KEEP_SPEND_DAYS}, "tenant": text})},
    }
