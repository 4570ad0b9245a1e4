"""What schemathesis does to each generated request before it goes out (SCHEMATHESIS_HOOKS names this module).

Requests get a model that some upstream serves and the time for its answer: a gateway that says 404 and 504 to all of them
would pass unseen. Whole floats become integers: JSON
Schema takes 57.0 for one, the gateway, like OpenAI, does not, and the description says so.
"""

from typing import Any

import schemathesis

# By operation; `steady` serves the others.
MODELS = {"embeddings": "vectors", "rerank": "ranks",
          **dict.fromkeys(("count_tokens", "input_tokens", "tokenize"), "counted")}
JOB_MODELS = {"/v1/embeddings": "vectors", "/v1/rerank": "ranks", "/v1/messages/count_tokens": "counted",
              "/v1/responses/input_tokens": "counted", "/tokenize": "counted"}
LATEST = 1e11  # start of a job
FORGETS = "forget"  # wants one of its parameters, and `all` alone, which a description cannot say of a query
ENOUGH_S = 10.0


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Mend what has nothing to do with the request's shape."""
    if isinstance(case.body, dict):
        case.body = whole(case.body)
        if isinstance(case.body.get("model"), str) and case.body["model"]:
            case.body["model"] = MODELS.get(case.operation.definition.raw["operationId"], "steady")
        mend_job(case.body)
    if case.operation.definition.raw["operationId"] == FORGETS:
        if not any((case.query or {}).values()):
            case.query = {"all": "true"}
        elif len(case.query) > 1 and case.query.get("all") in (True, "true"):
            del case.query["all"]
    if case.headers and is_impatient(str(case.headers.get("x-request-timeout"))):
        case.headers["x-request-timeout"] = str(ENOUGH_S)


def mend_job(body: dict[str, Any]) -> None:
    """A submission names a model of its endpoint, and no start beyond its deadline."""
    if isinstance(inner := body.get("body"), dict) and "endpoint" in body:
        if isinstance(inner.get("model"), str) and inner["model"]:
            inner["model"] = JOB_MODELS.get(str(body["endpoint"]), "steady")
        if inner.get("background") is True:
            inner["background"] = None
        if isinstance(body.get("run_at"), int | float) and 0 <= body["run_at"] <= LATEST:
            body["run_at"] = 0


def is_impatient(text: str) -> bool:
    """Whether it is a time-out, but too short for an answer."""
    try:
        return 0 < float(text) < ENOUGH_S
    except ValueError:
        return False


def whole(value: Any) -> Any:
    """`value` with an integer wherever a float has no fraction."""
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
