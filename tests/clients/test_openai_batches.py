"""OpenAI's SDK for Python: files and batches, from the upload to the files of results, on the default store."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Batch

from tests.clients.asks import WHOLE_TEXT, prompt
from tests.clients.batch_gateway import BATCH_WITHIN_S, POLL_S, KeyedGateway, keyed_gateway
from tests.clients.script import N_INPUT_TOKENS, N_OUTPUT_TOKENS
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.sockets

FINAL = {"completed", "failed", "expired", "cancelled"}


@pytest.fixture(scope="module")
def keyed(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedGateway]:
    """A gateway with two keys."""
    with keyed_gateway(upstream, tmp_path_factory.mktemp("batches")) as keyed:
        yield keyed


@pytest.fixture(scope="module")
def client(keyed: KeyedGateway) -> Iterator[openai.OpenAI]:
    """The SDK with the first key."""
    with keyed.openai() as client:
        yield client


def line(custom_id: str, text: str, **changes: Any) -> str:
    """One line of a batch file."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": {
        "model": "via-chat", "messages": [{"role": "user", "content": text}]}, **changes})


def upload(client: openai.OpenAI, *lines: str) -> str:
    """Upload a batch file; returns its id."""
    return client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch").id


def create(client: openai.OpenAI, *lines: str) -> Batch:
    """Upload a file and create its batch."""
    return client.batches.create(input_file_id=upload(client, *lines), endpoint="/v1/chat/completions",
                                 completion_window="24h", metadata={"night": "1"})


def finish(client: openai.OpenAI, batch: Batch) -> Batch:
    """Poll a batch until its end."""
    give_up_at = time.monotonic() + BATCH_WITHIN_S
    while (batch := client.batches.retrieve(batch.id)).status not in FINAL:
        assert time.monotonic() < give_up_at, batch
        time.sleep(POLL_S)
    return batch


def rows(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    assert file_id is not None
    return [json.loads(row) for row in client.files.content(file_id).text.splitlines()]


def test_file_from_upload_to_deletion(client: openai.OpenAI, tmp_path: Path) -> None:
    """By path, with an expiry; its contents come back byte for byte."""
    contents = bytes(range(256)) * 1000
    (tmp_path / "a.bin").write_bytes(contents)
    file = client.files.create(file=tmp_path / "a.bin", purpose="user_data",
                               expires_after={"anchor": "created_at", "seconds": 7200})
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(contents), "a.bin", "user_data", "processed")
    assert file.expires_at == file.created_at + 7200
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == contents
    head = httpx2.head(f"{client.base_url}files/{file.id}/content", headers={"authorization": f"Bearer {client.api_key}"})
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(contents)), b"")
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_files_are_listed_page_by_page(client: openai.OpenAI) -> None:
    """The SDK's iterator follows the pages."""
    ids = [client.files.create(file=io.BytesIO(b"x"), purpose="vision").id for _ in range(5)]
    assert [file.id for file in client.files.list(purpose="vision", limit=2)] == ids[::-1]
    assert [file.id for file in client.files.list(purpose="vision", limit=2, order="asc")] == ids


def test_batch_from_file_to_results(client: openai.OpenAI, marker: str) -> None:
    """Answers in the output file, the upstream's refusals in the error file, counts and usage in the batch."""
    batch = create(client, line("good", prompt(marker)), line("long", prompt(marker, "context_length")),
                   line("more", prompt(marker)))
    assert (batch.status, batch.object, batch.completion_window) == ("validating", "batch", "24h")
    assert batch.expires_at == batch.created_at + 86_400
    done = finish(client, batch)
    assert done.status == "completed", done
    assert (done.metadata, done.model, done.errors) == ({"night": "1"}, "via-chat", None)
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (3, 2, 1)
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (2 * N_INPUT_TOKENS, 2 * N_OUTPUT_TOKENS)
    assert None not in (done.in_progress_at, done.finalizing_at, done.completed_at)
    output = rows(client, done.output_file_id)
    assert [(row["custom_id"], row["error"], row["response"]["status_code"]) for row in output] == [
        ("good", None, 200), ("more", None, 200)]
    assert [row["response"]["body"]["choices"][0]["message"]["content"] for row in output] == [WHOLE_TEXT] * 2
    (failed,) = rows(client, done.error_file_id)
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("long", 400)
    assert failed["response"]["body"]["error"]["code"] == "context_length_exceeded"
    info = client.files.retrieve(done.output_file_id or "")
    assert (info.purpose, info.filename) == ("batch_output", f"{done.id}_output.jsonl")


def test_batch_with_a_bad_line_fails_and_nothing_runs(client: openai.OpenAI, upstream: Upstream, marker: str) -> None:
    """Every bad line is named, with OpenAI's codes."""
    done = finish(client, create(client, line("a", prompt(marker)), "{", line("a", prompt(marker)),
                                 line("b", prompt(marker), url="/v1/embeddings"),
                                 line("c", prompt(marker), body={"model": "gone"})))
    assert (done.status, done.output_file_id, done.error_file_id) == ("failed", None, None)
    assert done.errors is not None
    assert [(error.line, error.code) for error in done.errors.data or []] == [
        (2, "invalid_json_line"), (3, "duplicate_custom_id"), (4, "url_mismatch"), (5, "model_not_found")]
    assert done.failed_at is not None
    assert upstream.seen(marker) == []


def test_batch_of_embeddings(client: openai.OpenAI) -> None:
    """Another endpoint."""
    body = {"model": "via-chat", "input": ["a", "bb"], "encoding_format": "float"}
    file_id = upload(client, json.dumps({"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": body}))
    batch = client.batches.create(input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h")
    (row,) = rows(client, finish(client, batch).output_file_id)
    assert len(row["response"]["body"]["data"]) == 2


def test_cancelled_batch_delivers_what_has_ended(client: openai.OpenAI, upstream: Upstream, marker: str) -> None:
    """A line that hangs is stopped, and is in the error file."""
    batch = create(client, line("good", prompt(marker)), line("hangs", prompt(marker, "hang_at_once")))
    give_up_at = time.monotonic() + BATCH_WITHIN_S
    while (counts := client.batches.retrieve(batch.id).request_counts) is None or counts.completed < 1:
        assert time.monotonic() < give_up_at
        time.sleep(POLL_S)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = finish(client, batch)
    assert (done.status, done.cancelled_at is not None) == ("cancelled", True)
    assert [row["custom_id"] for row in rows(client, done.output_file_id)] == ["good"]
    (row,) = rows(client, done.error_file_id)
    assert (row["custom_id"], row["response"], row["error"]["code"]) == ("hangs", None, "batch_cancelled")
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_batches_are_listed_page_by_page(keyed: KeyedGateway) -> None:
    """Newest first; the SDK's iterator follows the pages."""
    with keyed.openai(keyed.other) as client:
        ids = [create(client, line("a", prompt(""))).id for _ in range(5)]
        assert [batch.id for batch in client.batches.list(limit=2)] == ids[::-1]


def test_same_idempotency_key_is_the_same_batch(client: openai.OpenAI) -> None:
    """A repeated creation."""
    file_id = upload(client, line("a", prompt("")))
    one, two = (client.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h",
                                      extra_headers={"Idempotency-Key": "k1"}) for _ in range(2))
    assert one.id == two.id
    with pytest.raises(openai.ConflictError):
        client.batches.create(input_file_id=file_id, endpoint="/v1/responses", completion_window="24h",
                              extra_headers={"Idempotency-Key": "k1"})


def test_another_key_finds_nothing(keyed: KeyedGateway, client: openai.OpenAI) -> None:
    """Neither the files nor the batches of a key exist for another one."""
    done = finish(client, create(client, line("a", prompt(""))))
    with keyed.openai(keyed.other) as other:
        for file_id in (done.input_file_id, done.output_file_id or ""):
            for call in (other.files.retrieve, other.files.content, other.files.delete):
                with pytest.raises(openai.NotFoundError):
                    call(file_id)
            with pytest.raises(openai.NotFoundError):
                other.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
        for operation in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                operation(done.id)
        assert done.id not in [batch.id for batch in other.batches.list()]
        assert done.input_file_id not in [file.id for file in other.files.list()]


@pytest.mark.parametrize("changes", [{"endpoint": "/v1/videos"}, {"completion_window": "1h"}, {"metadata": {"k" * 65: "v"}}])
def test_create_with_a_bad_field_is_a_bad_request(client: openai.OpenAI, changes: dict[str, Any]) -> None:
    """400 with the field's name."""
    fields: dict[str, Any] = {"input_file_id": upload(client, line("a", "x")), "endpoint": "/v1/chat/completions",
                              "completion_window": "24h", **changes}
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(**fields)
    assert caught.value.param == next(iter(changes))
