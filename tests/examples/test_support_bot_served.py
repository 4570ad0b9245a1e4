"""The support bot as a model of a real gateway, called through OpenAI's SDK and by a client of the typed events."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from examples.support_bot.desk import ROOT
from examples.support_bot.served import gateway_url as address_of_gateway
from tests.clients.gateway import Gateway, started

SETTINGS = ROOT / "examples" / "support_bot" / "stayfast.yaml"
QUESTION = "How do I turn hedging off?"

pytestmark = [pytest.mark.sockets,
              pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the embedded engine is not installed here")]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The example as it stands, on a port that it learns of from the environment."""
    with started(SETTINGS, tmp_path_factory.mktemp("bot"), module_path=ROOT) as running:
        yield running


@pytest.mark.parametrize(("variables", "url"), [
    ({}, "http://127.0.0.1:8090/v1"), ({"STAYFAST_PORT": "9000", "PORT": "80"}, "http://127.0.0.1:9000/v1"),
    ({"PORT": "9001"}, "http://127.0.0.1:9001/v1"), ({"PORT": "1", "SUPPORT_BOT_URL": "http://h/v1"}, "http://h/v1")])
def test_gateway_url_from_the_environment(variables: dict[str, str], url: str) -> None:
    assert address_of_gateway(variables) == url


def test_served_bot_through_openai_sdk(gateway: Gateway) -> None:
    with OpenAI(base_url=gateway.openai_url, api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(model="support-bot", messages=[{"role": "user", "content": QUESTION}])
        text = whole.choices[0].message.content or ""
        with client.chat.completions.create(model="support-bot", messages=[{"role": "user", "content": QUESTION}],
                                            stream=True) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "`hedge: {mode: off}`" in text
    assert "stayfast-tiny, from memory: Hedging" in text
    assert len([piece for piece in pieces if piece]) > 2
    assert "`hedge: {mode: off}`" in "".join(pieces)


def test_served_bot_empty_question_is_400(gateway: Gateway) -> None:
    refused = httpx.post(f"{gateway.openai_url}/chat/completions", timeout=30,
                         json={"model": "support-bot", "messages": [{"role": "user", "content": " "}]})
    assert (refused.status_code, refused.json()["error"]["message"].partition(":")[0]) == (400, "messages")


def test_served_bot_typed_events_and_late_patch(gateway: Gateway) -> None:
    body = {"model": "support-bot", "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    with httpx.stream("POST", f"{gateway.openai_url}/chat/completions", json=body, timeout=30,
                      headers={"x-stayfast-events": "late"}) as answer:
        assert answer.status_code == 200, Path(gateway.errors).read_text()
        names = [line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: ")]
    assert names[0] == "prefix"
    assert {"progress", "citation", "delta"} <= set(names)
    assert names[-2:] == ["final", "patch"]
