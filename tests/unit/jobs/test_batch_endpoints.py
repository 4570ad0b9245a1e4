"""The endpoints of files and batches on a real store: what their SDKs do not show."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

import pytest

from stayfast.core.errors import Rejected, StayfastError
from stayfast.core.jobs import BatchState, Door
from stayfast.jobs.batches import BatchService
from stayfast.jobs.files import FileService
from stayfast.keys.principal import Principal
from stayfast.server.jobs.batches import BatchEndpoints
from stayfast.server.jobs.endpoint import EndpointReply, EndpointRequest, EndpointTable
from stayfast.server.jobs.files import FileEndpoints
from stayfast.server.jobs.message_batches import MessageBatchEndpoints
from tests.unit.jobs.batch_rig import CHAT, MODEL, BatchRig, batch_rig, good_line

TYPE = "multipart/form-data; boundary=XX"
NO_FIELDS: Mapping[str, str] = MappingProxyType({})
NEW = {"endpoint": CHAT, "completion_window": "24h"}


@dataclass
class PartsBody:
    """A body that arrives in parts."""

    parts: list[bytes]
    n_read: int = 0

    async def read(self) -> bytes:
        """The next part."""
        self.n_read += 1
        return self.parts.pop(0) if self.parts else b""


@dataclass(frozen=True)
class OpenConfig:
    """The part of the server's settings that endpoints read."""

    max_body_bytes: int = 4096


@dataclass(frozen=True)
class RunningModels:
    """The part of the running system that endpoints read."""

    names: Sequence[str] = (MODEL,)

    def models(self) -> Sequence[str]:
        """The routes."""
        return self.names


@dataclass(frozen=True)
class CurrentSystem:
    """The reference to it."""

    config: OpenConfig = field(default_factory=OpenConfig)
    backend: RunningModels = field(default_factory=RunningModels)


class Doors:
    """All endpoints of one rig, called as the application calls them."""

    def __init__(self, rig: BatchRig) -> None:
        service = rig.service()
        files = FileService(service)
        current: Any = CurrentSystem()
        self.table = EndpointTable((
            *FileEndpoints(files, rig.config).endpoints(),
            *BatchEndpoints(BatchService(service, files, Door.BATCH)).endpoints(),
            *MessageBatchEndpoints(BatchService(service, files, Door.MESSAGE_BATCH), current).endpoints()))

    async def call(self, method: str, path: str, body: bytes | dict[str, Any] | list[bytes] = b"", tenant: str = "t", *,
                   key: str = "", kind: str = TYPE) -> EndpointReply:
        """Call an endpoint. key: the idempotency key; kind: the content type."""
        path, _, query = path.partition("?")
        found = self.table.find(path)
        assert found is not None, path
        by_method, parameters = found
        parts = body if isinstance(body, list) else [json.dumps(body).encode() if isinstance(body, dict) else body]
        return await by_method[method].handler(EndpointRequest(
            method=method, path=path, parameters=parameters, query=dict(parse_qsl(query, keep_blank_values=True)),
            headers={"content-type": kind, "idempotency-key": key}, tenant=tenant, request_id="req_1",
            caller=Principal(tenant), accepted_at=0.0, body=PartsBody(parts)))

    async def get(self, method: str, path: str, *arguments: Any, key: str = "") -> Any:
        """The JSON of a reply."""
        return json.loads((await self.call(method, path, *arguments, key=key)).body)

    async def upload(self, contents: bytes, fields: Mapping[str, str] = NO_FIELDS) -> Any:
        """Upload a file."""
        return await self.get("POST", "/v1/files", form(contents, fields=fields))

    async def refusal(self, *arguments: Any, key: str = "", kind: str = TYPE) -> tuple[int, str]:
        """Status and code of the error."""
        with pytest.raises(StayfastError) as caught:
            await self.call(*arguments, key=key, kind=kind)
        return caught.value.status, caught.value.code


def form(contents: bytes, step: int = 7, fields: Mapping[str, str] = NO_FIELDS) -> list[bytes]:
    """An upload in parts; the purpose may come after the file."""
    body = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n' + contents + b"\r\n"
    for name, value in {"purpose": "batch", **fields}.items():
        body += f'--XX\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    body += b"--XX--\r\n"
    return [body[at:at + step] for at in range(0, len(body), step)]


async def contents_of(reply: EndpointReply) -> bytes:
    """The body of a streamed reply, which has the size that it names."""
    assert reply.parts is not None
    data = b"".join([part async for part in reply.parts])
    assert len(data) == reply.n_bytes
    return data


Scene = Callable[[Doors, BatchRig], Awaitable[None]]


def play(scene: Scene, rig: AbstractAsyncContextManager[BatchRig]) -> None:
    """Run a test on an empty store."""
    async def main() -> None:
        async with rig as opened:
            await scene(Doors(opened), opened)

    asyncio.run(main())


def test_upload_is_listed_read_and_deleted(tmp_path: Path) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        info = await doors.upload(b"one\r\ntwo\r\n--X")
        assert (info["bytes"], info["filename"], info["purpose"]) == (13, "in.jsonl", "batch")
        assert info["expires_at"] == info["created_at"] + 2_592_000
        assert await doors.get("GET", f"/v1/files/{info['id']}") == info
        assert (await doors.get("GET", "/v1/files"))["data"] == [info]
        assert await contents_of(await doors.call("GET", f"/v1/files/{info['id']}/content")) == b"one\r\ntwo\r\n--X"
        assert await doors.get("DELETE", f"/v1/files/{info['id']}") == {"id": info["id"], "object": "file", "deleted": True}
        assert await doors.refusal("GET", f"/v1/files/{info['id']}/content") == (404, "file_not_found")
        assert (await doors.get("GET", "/v1/files"))["data"] == []

    play(scene, batch_rig(tmp_path))


def test_upload_expiry_is_the_clients_or_the_purposes(tmp_path: Path) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        assert (await doors.upload(b"x", {"purpose": "user_data"}))["expires_at"] is None
        info = await doors.upload(b"x", {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})
        assert info["expires_at"] == info["created_at"] + 3600

    play(scene, batch_rig(tmp_path))


@pytest.mark.parametrize("step", [1, 64, 4096])
def test_upload_too_large_is_413_and_leaves_nothing(tmp_path: Path, step: int) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        assert (await doors.upload(b"x" * 1024))["bytes"] == 1024
        parts = form(b"x" * 1025, step)
        assert await doors.refusal("POST", "/v1/files", parts, kind=TYPE) == (413, "file_too_large")
        assert len((await doors.get("GET", "/v1/files"))["data"]) == 1
        assert len(list((tmp_path / "files").glob("*"))) == 1

    play(scene, batch_rig(tmp_path, max_file_bytes=1024))


@pytest.mark.parametrize(("body", "kind", "status"), [
    ([b"{}"], "application/json", 415), (form(b"x", fields={"purpose": "nothing"}), TYPE, 400), (form(b"x")[:-2], TYPE, 400),
    (form(b"x", fields={"expires_after[seconds]": "1"}), TYPE, 400), ([], TYPE, 400)])
def test_upload_bad_form_leaves_nothing(tmp_path: Path, body: list[bytes], kind: str, status: int) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        assert (await doors.refusal("POST", "/v1/files", body, kind=kind))[0] == status
        assert list((tmp_path / "files").glob("*")) == []

    play(scene, batch_rig(tmp_path))


def test_list_files_pages_and_filters(tmp_path: Path) -> None:
    async def scene(doors: Doors, rig: BatchRig) -> None:
        ids = [(await doors.upload(b"x", {"purpose": "batch" if n % 2 else "user_data"}))["id"] for n in range(5)]
        await rig.add_file(b"x", purpose="message_batch")
        page = await doors.get("GET", "/v1/files?limit=2")
        assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[:2:-1], True)
        page = await doors.get("GET", f"/v1/files?limit=3&after={page['last_id']}")
        assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[2::-1], False)
        page = await doors.get("GET", "/v1/files?purpose=batch&order=asc")
        assert [each["id"] for each in page["data"]] == [ids[1], ids[3]]
        assert await doors.refusal("GET", "/v1/files?after=file-1") == (404, "file_not_found")
        assert await doors.refusal("GET", "/v1/files?after=") == (404, "file_not_found")
        assert (await doors.refusal("GET", "/v1/files?order=up"))[0] == 400
        assert (await doors.refusal("GET", "/v1/files?purpose=message_batch"))[0] == 400

    play(scene, batch_rig(tmp_path))


def test_files_of_another_key_are_unknown(tmp_path: Path) -> None:
    async def scene(doors: Doors, rig: BatchRig) -> None:
        file_id = (await doors.upload(b"x"))["id"]
        hidden = (await rig.add_file(b"x", purpose="message_batch")).id
        for tenant, each in (("u", file_id), ("t", hidden), ("t", "file-0")):
            for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
                assert await doors.refusal(method, f"/v1/files/{each}{path}", b"", tenant) == (404, "file_not_found")
            new = {**NEW, "input_file_id": each}
            assert await doors.refusal("POST", "/v1/batches", new, tenant) == (404, "file_not_found")
        assert (await doors.get("GET", "/v1/files", b"", "u"))["data"] == []

    play(scene, batch_rig(tmp_path))


def test_file_of_a_running_batch_is_not_deleted(tmp_path: Path) -> None:
    async def scene(doors: Doors, rig: BatchRig) -> None:
        file_id = (await doors.upload(good_line("a")))["id"]
        batch = await doors.get("POST", "/v1/batches", {**NEW, "input_file_id": file_id})
        assert (batch["status"], batch["errors"], batch["request_counts"]["total"]) == ("validating", None, 0)
        assert await doors.refusal("DELETE", f"/v1/files/{file_id}") == (409, "file_in_use")
        stored = await rig.store.find_batch(batch["id"])
        assert stored is not None
        done = await rig.run(stored)
        assert (await doors.get("DELETE", f"/v1/files/{file_id}"))["deleted"]
        assert await contents_of(await doors.call("GET", f"/v1/files/{done.output_file_id}/content"))
        assert await doors.refusal("GET", f"/v1/files/{done.output_file_id}", b"", "u") == (404, "file_not_found")

    play(scene, batch_rig(tmp_path))


def test_create_batch_with_a_key_is_the_same_batch(tmp_path: Path) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        new = {**NEW, "input_file_id": (await doors.upload(good_line("a")))["id"], "metadata": {"a": "1", "b": "2"}}
        first = await doors.get("POST", "/v1/batches", new, key="k")
        assert (await doors.get("POST", "/v1/batches", new, key="k"))["id"] == first["id"]
        again = {**new, "metadata": {"b": "2", "a": "1"}}
        assert (await doors.get("POST", "/v1/batches", again, key="k"))["id"] == first["id"]
        other = {**new, "metadata": {}}
        assert await doors.refusal("POST", "/v1/batches", other, key="k") == (409, "idempotency_conflict")
        assert (await doors.get("POST", "/v1/batches", new))["id"] != first["id"]

    play(scene, batch_rig(tmp_path))


def test_create_batch_of_another_purpose_or_too_many_is_refused(tmp_path: Path) -> None:
    async def scene(doors: Doors, rig: BatchRig) -> None:
        other = {**NEW, "input_file_id": (await doors.upload(good_line("a"), {"purpose": "user_data"}))["id"]}
        assert await doors.refusal("POST", "/v1/batches", other) == (400, "invalid_purpose")
        new = {**NEW, "input_file_id": (await doors.upload(good_line("a")))["id"]}
        stored = await rig.store.find_batch((await doors.get("POST", "/v1/batches", new))["id"])
        assert stored is not None
        await rig.coordinator().step()
        assert await doors.refusal("POST", "/v1/batches", new) == (429, "too_many_jobs")

    play(scene, batch_rig(tmp_path, max_queued=1))


def test_message_batch_beyond_the_limit_of_its_key_is_refused_for_good(tmp_path: Path) -> None:
    """413 with both numbers, even while the key has unfinished jobs: no wait makes room for it."""
    async def scene(doors: Doors, rig: BatchRig) -> None:
        params = {"model": MODEL, "max_tokens": 1, "messages": []}
        new = [{"requests": [{"custom_id": f"c{n}", "params": params} for n in range(size)]} for size in (1, 2, 3)]
        await doors.call("POST", "/v1/messages/batches", new[0])
        await rig.coordinator().step()
        assert await doors.refusal("POST", "/v1/messages/batches", new[1]) == (429, "too_many_jobs")
        with pytest.raises(Rejected, match="The batch has 3 requests, and a key may have 2 unfinished") as caught:
            await doors.call("POST", "/v1/messages/batches", new[2])
        assert (caught.value.status, caught.value.code) == (413, "batch_too_large")

    play(scene, batch_rig(tmp_path, max_queued=2))


def test_batches_are_paged_and_isolated(tmp_path: Path) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        new = {**NEW, "input_file_id": (await doors.upload(good_line("a")))["id"]}
        ids = [(await doors.get("POST", "/v1/batches", new))["id"] for _ in range(3)]
        page = await doors.get("GET", "/v1/batches?limit=2")
        assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
        page = await doors.get("GET", f"/v1/batches?limit=2&after={ids[1]}")
        assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[0]], False)
        assert (await doors.get("GET", "/v1/batches", b"", "u"))["data"] == []
        assert (await doors.get("GET", "/v1/messages/batches"))["data"] == []
        for method, path in (("GET", f"/v1/batches/{ids[0]}"), ("POST", f"/v1/batches/{ids[0]}/cancel"),
                             ("GET", f"/v1/batches?after={ids[0]}")):
            assert await doors.refusal(method, path, b"", "u") == (404, "batch_not_found")
        assert await doors.refusal("GET", f"/v1/messages/batches/{ids[0]}") == (404, "batch_not_found")
        assert (await doors.get("POST", f"/v1/batches/{ids[0]}/cancel"))["status"] == "cancelling"

    play(scene, batch_rig(tmp_path))


def message_body(*custom_ids: str, **params: Any) -> list[bytes]:
    """The creation of a message batch, in parts."""
    requests = [{"custom_id": each, "params": {"model": MODEL, "max_tokens": 5, "messages": [
        {"role": "user", "content": 'quote " and ] brace }'}], **params}} for each in custom_ids]
    body = json.dumps({"requests": requests}).encode()
    return [body[at:at + 11] for at in range(0, len(body), 11)]


def test_message_batch_from_creation_to_results(tmp_path: Path) -> None:
    async def scene(doors: Doors, rig: BatchRig) -> None:
        batch = await doors.get("POST", "/v1/messages/batches", message_body("a", "b", "c"))
        assert (batch["processing_status"], batch["request_counts"]["processing"]) == ("in_progress", 3)
        path = f"/v1/messages/batches/{batch['id']}"
        assert await doors.refusal("GET", f"{path}/results") == (404, "no_results")
        assert await doors.refusal("DELETE", path) == (409, "batch_in_progress")
        stored = await rig.store.find_batch(batch["id"])
        assert stored is not None
        assert stored.drop_at == pytest.approx(stored.created_at + 29 * 86_400)
        await rig.run(stored)
        batch = await doors.get("GET", path)
        assert (batch["processing_status"], batch["request_counts"]["succeeded"]) == ("ended", 3)
        data = await contents_of(await doors.call("GET", batch["results_url"]))
        assert [json.loads(line)["custom_id"] for line in data.splitlines()] == ["a", "b", "c"]
        assert (await doors.refusal("GET", f"{path}/results", b"", "u"))[0] == 404
        assert (await doors.get("DELETE", path)) == {"id": batch["id"], "type": "message_batch_deleted"}
        assert await doors.refusal("GET", path) == (404, "batch_not_found")
        assert list((tmp_path / "files").glob("*")) == []

    play(scene, batch_rig(tmp_path))


@pytest.mark.parametrize(("body", "status"), [
    (message_body("a", "a"), 400), (message_body("a b"), 400), (message_body("a", model="gone"), 404),
    (message_body("a", stream=True), 400), (message_body(), 400), ([b"{}"], 400), (message_body("a")[:-1], 400),
    ([b'{"requests":[{"custom_id":"', *[b"x" * 1024] * 8], 413)])
def test_message_batch_bad_request_stores_nothing(tmp_path: Path, body: list[bytes], status: int) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        assert (await doors.refusal("POST", "/v1/messages/batches", body))[0] == status
        assert (await doors.get("GET", "/v1/messages/batches"))["data"] == []
        assert list((tmp_path / "files").glob("*")) == []

    play(scene, batch_rig(tmp_path))


def test_message_batch_with_a_key_is_the_same_batch(tmp_path: Path) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        first = await doors.get("POST", "/v1/messages/batches", message_body("a"), key="k")
        again = await doors.get("POST", "/v1/messages/batches", message_body("a"), key="k")
        assert again["id"] == first["id"]
        other = message_body("b")
        assert (await doors.refusal("POST", "/v1/messages/batches", other, key="k"))[0] == 409
        assert len(list((tmp_path / "files").glob("*"))) == 1

    play(scene, batch_rig(tmp_path))


def test_message_batches_are_paged_in_both_directions(tmp_path: Path) -> None:
    async def scene(doors: Doors, _: BatchRig) -> None:
        ids = [(await doors.get("POST", "/v1/messages/batches", message_body("a")))["id"] for _ in range(4)]
        page = await doors.get("GET", f"/v1/messages/batches?limit=2&after_id={ids[3]}")
        assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
        page = await doors.get("GET", f"/v1/messages/batches?limit=2&before_id={ids[0]}")
        assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
        page = await doors.get("GET", f"/v1/messages/batches?limit=2&before_id={ids[2]}")
        assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[3]], False)
        assert (await doors.refusal("GET", f"/v1/messages/batches?before_id={ids[0]}&after_id={ids[1]}"))[0] == 400
        assert (await doors.refusal("GET", "/v1/messages/batches?limit=1001"))[0] == 400

    play(scene, batch_rig(tmp_path))


def test_cancelled_message_batch_is_canceling_then_ended(tmp_path: Path) -> None:
    async def scene(doors: Doors, rig: BatchRig) -> None:
        batch = await doors.get("POST", "/v1/messages/batches", message_body("a", "b", "c"))
        await rig.coordinator().step()
        await rig.run_jobs(1)
        path = f"/v1/messages/batches/{batch['id']}"
        cancelling = await doors.get("POST", f"{path}/cancel")
        assert cancelling["processing_status"] == "canceling"
        stored = await rig.store.find_batch(batch["id"])
        assert stored is not None
        assert (await rig.run(stored)).state is BatchState.CANCELLED
        ended = await doors.get("GET", path)
        assert ended["request_counts"] == {"processing": 0, "succeeded": 1, "errored": 0, "canceled": 2, "expired": 0}
        lines = (await contents_of(await doors.call("GET", f"{path}/results"))).splitlines()
        assert [json.loads(line)["result"]["type"] for line in lines] == ["succeeded", "canceled", "canceled"]

    play(scene, batch_rig(tmp_path))
