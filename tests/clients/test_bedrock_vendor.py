"""The simulated Bedrock, read by botocore's own client: it is the judge of frames, shapes, errors and signatures."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

from tests.clients.bedrock_server import (
    ACCESS_KEY,
    MODEL,
    PROFILE,
    REGION,
    SECRET_KEY,
    TOKEN,
    BedrockServer,
    running_bedrock,
)

pytestmark = pytest.mark.sockets

TOOL = {"toolSpec": {"name": "weather", "inputSchema": {"json": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}


@pytest.fixture(scope="module")
def bedrock() -> Iterator[BedrockServer]:
    with running_bedrock() as server:
        yield server


def _make_client(bedrock: BedrockServer, **keys: str) -> Any:
    return botocore.session.get_session().create_client(
        "bedrock-runtime", region_name=REGION, endpoint_url=bedrock.origin, config=Config(retries={"total_max_attempts": 1}),
        **keys)


@pytest.fixture
def client(bedrock: BedrockServer) -> Iterator[Any]:
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "aws_session_token": TOKEN}
    with closing(_make_client(bedrock, **keys)) as client:
        yield client


@pytest.mark.parametrize("model", [MODEL, PROFILE])
def test_converse_whole_botocore_reads_it(client: Any, model: str) -> None:
    answer = client.converse(modelId=model, **ASKED)
    assert answer["output"]["message"]["content"] == [{"text": "You wrote: Hi"}]
    assert (answer["stopReason"], answer["usage"]["outputTokens"] > 0) == ("end_turn", True)


def test_converse_stream_botocore_reads_every_event(client: Any) -> None:
    stream = client.converse_stream(modelId=MODEL, toolConfig={"tools": [TOOL], "toolChoice": {"any": {}}},
                                    outputConfig={"effort": "low"}, **ASKED)["stream"]
    with closing(stream):
        events = list(stream)
    names = [name for event in events for name in event]
    assert (names[0], names[-2:]) == ("messageStart", ["messageStop", "metadata"])
    deltas = [event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event]
    assert "".join(delta["toolUse"]["input"] for delta in deltas if "toolUse" in delta).startswith('{"city":')
    assert [delta["reasoningContent"]["redactedContent"] for delta in deltas
            if "redactedContent" in delta.get("reasoningContent", {})] == [b"encrypted"]


@pytest.mark.parametrize(("model", "name", "status"), [
    ("sim.throttled", "ThrottlingException", 429), ("sim.loading", "ModelNotReadyException", 429),
    ("sim.invalid", "ValidationException", 400), ("sim.broken", "ModelErrorException", 424),
    ("sim.unknown", "ResourceNotFoundException", 404)])
def test_error_botocore_knows_it(client: Any, model: str, name: str, status: int) -> None:
    with pytest.raises(ClientError) as failed:
        client.converse(modelId=model, **ASKED)
    assert failed.value.response["Error"]["Code"] == name
    assert failed.value.response["ResponseMetadata"]["HTTPStatusCode"] == status


def test_exception_in_the_stream_botocore_raises(client: Any) -> None:
    stream = client.converse_stream(modelId="sim.throttled-inside", **ASKED)["stream"]
    with closing(stream), pytest.raises(EventStreamError, match="throttlingException"):
        list(stream)


def test_wrong_secret_signature_refused(bedrock: BedrockServer) -> None:
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": "another-secret", "aws_session_token": TOKEN}
    with (closing(_make_client(bedrock, **keys)) as client,
          pytest.raises(ClientError, match="InvalidSignatureException")):
        client.converse(modelId=MODEL, **ASKED)


def test_cache_point_usage_is_written_then_read(client: Any) -> None:
    system = [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}]
    usages = [client.converse(modelId=MODEL, system=system, **ASKED)["usage"] for _ in range(2)]
    assert [usage["cacheWriteInputTokens"] > 0 for usage in usages] == [True, False]
    assert [usage["cacheReadInputTokens"] > 0 for usage in usages] == [False, True]
