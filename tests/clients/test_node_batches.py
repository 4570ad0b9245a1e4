"""OpenAI's SDK for Node: files and batches; the cases themselves are in node/batches.mjs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.asks import WHOLE_TEXT, prompt
from tests.clients.gateway import Gateway
from tests.clients.node_client import NodeClient, NodeError, running_node

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def node(gateway: Gateway) -> Iterator[NodeClient]:
    """Node with the SDK, pointed at the gateway."""
    with running_node(gateway) as node:
        yield node


def line(custom_id: str, text: str, **changes: Any) -> str:
    """One line of a batch file."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": {
        "model": "via-chat", "messages": [{"role": "user", "content": text}]}, **changes})


def test_files(node: NodeClient) -> None:
    """Upload, list, read, delete. Node's form has the file before the purpose."""
    assert node.run("batches.files", text="wörld\r\n") == {
        "bytes": 8, "purpose": "batch", "filename": "in.jsonl", "content": "wörld\r\n", "deleted": True, "isListed": True}


def test_batch(node: NodeClient, marker: str) -> None:
    """From the file to both files of results."""
    done = node.run("batches.whole", lines=[line("a", prompt(marker)), line("b", prompt(marker, "context_length"))])
    assert done == {"status": "completed", "counts": {"total": 2, "completed": 1, "failed": 1}, "problems": [],
                    "output": [["a", WHOLE_TEXT]], "failed": [["b", 400]]}


def test_bad_batch(node: NodeClient) -> None:
    """The bad line is named."""
    done = node.run("batches.whole", lines=[line("a", "x"), "nonsense"])
    assert (done["status"], done["problems"]) == ("failed", [[2, "invalid_json_line"]])


def test_batches_are_listed_page_by_page(node: NodeClient) -> None:
    """The SDK's iterator follows the pages."""
    assert node.run("batches.pages", lines=[line("a", prompt(""))]) is True


def test_unknown_batch(node: NodeClient) -> None:
    """Another key's, or none."""
    with pytest.raises(NodeError) as caught:
        node.run("batches.unknown", id="batch_0")
    assert (caught.value.name, caught.value.status) == ("NotFoundError", 404)
