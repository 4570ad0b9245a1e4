"""Anthropic's SDK for Python: message batches, from their creation to their results, on the default store."""

import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import MessageBatch
from anthropic.types.messages.batch_create_params import Request

from tests.clients.asks import WHOLE_TEXT, prompt
from tests.clients.batch_gateway import BATCH_WITHIN_S, POLL_S, KeyedGateway, keyed_gateway
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def keyed(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedGateway]:
    """A gateway with two keys."""
    with keyed_gateway(upstream, tmp_path_factory.mktemp("message-batches")) as keyed:
        yield keyed


@pytest.fixture(scope="module")
def client(keyed: KeyedGateway) -> Iterator[anthropic.Anthropic]:
    """The SDK with the first key."""
    with keyed.anthropic() as client:
        yield client


def request(custom_id: str, text: str, **params: Any) -> Request:
    """One request of a batch."""
    fields: Any = {"model": "via-messages", "max_tokens": 16, "messages": [{"role": "user", "content": text}], **params}
    return {"custom_id": custom_id, "params": fields}


def finish(client: anthropic.Anthropic, batch: MessageBatch) -> MessageBatch:
    """Poll a batch until its end."""
    give_up_at = time.monotonic() + BATCH_WITHIN_S
    while (batch := client.messages.batches.retrieve(batch.id)).processing_status != "ended":
        assert time.monotonic() < give_up_at, batch
        counts = batch.request_counts
        assert (counts.succeeded, counts.errored, counts.canceled, counts.expired) == (0, 0, 0, 0)
        time.sleep(POLL_S)
    return batch


def test_message_batch_from_creation_to_results(client: anthropic.Anthropic, marker: str) -> None:
    """Messages and errors as the SDK's types."""
    batch = client.messages.batches.create(requests=[
        request("good", prompt(marker)), request("long", prompt(marker, "context_length")), request("more", prompt(marker))])
    assert (batch.processing_status, batch.request_counts.processing, batch.results_url) == ("in_progress", 3, None)
    assert (batch.expires_at - batch.created_at).total_seconds() == pytest.approx(86_400)
    done = finish(client, batch)
    assert (done.request_counts.succeeded, done.request_counts.errored, done.request_counts.processing) == (2, 1, 0)
    assert done.ended_at is not None
    good, long, more = client.messages.batches.results(batch.id)
    assert [good.custom_id, long.custom_id, more.custom_id] == ["good", "long", "more"]
    for each in (good, more):
        assert each.result.type == "succeeded"
        (block,) = each.result.message.content
        assert block.type == "text"
        assert block.text == WHOLE_TEXT
    assert long.result.type == "errored"
    assert long.result.error.error.type == "invalid_request_error"


def test_message_batch_is_deleted_after_its_end(client: anthropic.Anthropic) -> None:
    """Then neither it nor its results exist."""
    batch = finish(client, client.messages.batches.create(requests=[request("a", prompt(""))]))
    deleted = client.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.results(batch.id)


def test_cancelled_message_batch_delivers_what_has_ended(client: anthropic.Anthropic, upstream: Upstream,
                                                            marker: str) -> None:
    """A request that hangs is stopped and is canceled."""
    batch = client.messages.batches.create(requests=[request("hangs", prompt(marker, "hang_at_once"))])
    upstream.wait_for(marker)
    with pytest.raises(anthropic.AnthropicError, match="No `results_url`"):
        client.messages.batches.results(batch.id)
    cancelling = client.messages.batches.cancel(batch.id)
    assert cancelling.processing_status in ("canceling", "ended")
    assert cancelling.cancel_initiated_at is not None
    done = finish(client, batch)
    assert done.request_counts.canceled == 1
    (row,) = client.messages.batches.results(batch.id)
    assert (row.custom_id, row.result.type) == ("hangs", "canceled")


def test_message_batches_are_listed_page_by_page(keyed: KeyedGateway) -> None:
    """Newest first, and from a batch to newer ones."""
    with keyed.anthropic(keyed.other) as client:
        ids = [client.messages.batches.create(requests=[request("a", prompt(""))]).id for _ in range(5)]
        assert [batch.id for batch in client.messages.batches.list(limit=2)] == ids[::-1]
        newer = client.messages.batches.list(limit=2, before_id=ids[0])
        assert [batch.id for batch in newer.data] == [ids[2], ids[1]]


@pytest.mark.parametrize(("requests", "kind"), [
    ([], anthropic.BadRequestError), ([request("a b", "x")], anthropic.BadRequestError),
    ([request("a", "x"), request("a", "x")], anthropic.BadRequestError),
    ([request("a", "x", stream=True)], anthropic.BadRequestError),
    ([request("a", "x", model="gone")], anthropic.NotFoundError)])
def test_bad_creation_has_the_sdks_error(client: anthropic.Anthropic, requests: list[Request],
                                         kind: type[anthropic.APIStatusError]) -> None:
    """In Anthropic's dialect."""
    with pytest.raises(kind) as caught:
        client.messages.batches.create(requests=requests)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["message"]


def test_another_key_finds_nothing(keyed: KeyedGateway, client: anthropic.Anthropic) -> None:
    """The batches of a key do not exist for another one."""
    batch = finish(client, client.messages.batches.create(requests=[request("a", prompt(""))]))
    with keyed.anthropic(keyed.other) as other:
        for call in (other.messages.batches.retrieve, other.messages.batches.cancel, other.messages.batches.delete,
                     other.messages.batches.results):
            with pytest.raises(anthropic.NotFoundError):
                call(batch.id)
