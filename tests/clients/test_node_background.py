"""OpenAI's SDK for Node, responses in the background, over each upstream dialect; the cases are in node/background.mjs."""

from collections.abc import Iterator

import pytest

from tests.clients.asks import WHOLE_TEXT, prompt
from tests.clients.gateway import Gateway
from tests.clients.node_client import NodeClient, running_node

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def node(gateway: Gateway) -> Iterator[NodeClient]:
    """Node with the SDK, pointed at the gateway."""
    with running_node(gateway) as node:
        yield node


def test_background_response_is_polled(node: NodeClient, model: str, marker: str) -> None:
    """Queued, then completed with the whole text under the same id."""
    assert node.run("background.poll", model=model, prompt=prompt(marker)) == {
        "first": "queued", "last": "completed", "text": WHOLE_TEXT, "same": True}


def test_background_stream_is_resumed_after_every_event(node: NodeClient, model: str, marker: str) -> None:
    """Each rest equals the first reading's."""
    found = node.run("background.resume", model=model, prompt=prompt(marker))
    assert found["n"] > 5
    assert (found["end"], found["differing"]) == ("response.completed", [])


def test_background_response_is_cancelled_twice_and_deleted(node: NodeClient, model: str, marker: str) -> None:
    """While its upstream hangs."""
    assert node.run("background.cancel", model=model, prompt=prompt(marker, "hang_midway")) == "cancelled"
