"""The classifiers' endpoint in the OpenAPI document."""

from collections.abc import Mapping
from typing import Any

import msgspec

from stayfast.server.paths import CLASSIFY
from stayfast.wire.classify.endpoint import ClassifyReply, ClassifyRequest

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"


def classify_schemas() -> Json:
    """The schemas of request and answer, by name."""
    return msgspec.json.schema_components([ClassifyRequest, ClassifyReply], ref_template=_REF)[1]


def classify_paths(refusals: Mapping[str, str], error: Json) -> Json:
    """refusals: descriptions by status. error: a reference to the schema of errors."""
    described = dict(refusals) | {"404": "Unknown classifier; the error lists those that exist.",
                                  "429": "Too many requests are being classified; see Retry-After.",
                                  "503": "The classifier's embedder is not loaded yet; see Retry-After."}
    responses: Json = {status: {"description": text, "content": {"application/json": {"schema": error}}}
                       for status, text in described.items()}
    responses["200"] = {"description": "One label for each input; unknown where none is certain enough.", "content": {
        "application/json": {"schema": {"$ref": _REF.format(name=ClassifyReply.__name__)}}}}
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": _REF.format(
        name=ClassifyRequest.__name__)}}}}
    return {CLASSIFY: {"post": {"operationId": "classify", "summary": "Labels of texts, by a classifier of the settings.",
                                "requestBody": body, "responses": responses}}}
