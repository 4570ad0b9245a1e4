"""Anthropic's message batches: `/v1/messages/batches`.

A creation is split and checked while it arrives; its requests go to the disk as lines of a batch file.
"""

import msgspec

from stayfast.core.errors import Rejected, StayfastError
from stayfast.core.jobs import Batch, FileInfo
from stayfast.jobs.batches import BatchService
from stayfast.jobs.files import Upload
from stayfast.keys.principal import allows_route
from stayfast.server.backend import ActiveSystem
from stayfast.server.jobs.endpoint import Endpoint, EndpointReply, EndpointRequest
from stayfast.wire.jobs.batches import read_key
from stayfast.wire.jobs.files import MESSAGE_BATCH
from stayfast.wire.jobs.lines import MESSAGES_ENDPOINT
from stayfast.wire.jobs.message_batches import (
    KEEP_S,
    MAX_BODY_BYTES,
    RequestChecker,
    RequestSplitter,
    encode_message_batch,
)
from stayfast.wire.jobs.pages import encode_page, parse_limit

MAX_LISTED_MESSAGE_BATCHES = 1000
DEFAULT_LISTED_MESSAGE_BATCHES = 20
JSON_LINES = "application/x-jsonl"


class MessageBatchEndpoints:
    """The endpoints of message batches."""

    def __init__(self, batches: BatchService, current: ActiveSystem) -> None:
        self._batches = batches
        self._current = current

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them."""
        return (Endpoint("POST", "/v1/messages/batches", self.create, MAX_BODY_BYTES),
                Endpoint("GET", "/v1/messages/batches", self.list_batches),
                Endpoint("GET", "/v1/messages/batches/{id}", self.retrieve),
                Endpoint("DELETE", "/v1/messages/batches/{id}", self.delete),
                Endpoint("POST", "/v1/messages/batches/{id}/cancel", self.cancel),
                Endpoint("GET", "/v1/messages/batches/{id}/results", self.read_results))

    async def create(self, request: EndpointRequest) -> EndpointReply:
        """Store a batch. Raises Rejected with the place of the first bad request; then nothing is stored."""
        key = read_key(request.headers)
        await self._batches.check_room(request.tenant)
        models = frozenset(name for name in self._current.backend.models() if allows_route(request.caller, name))
        checker = RequestChecker(models.__contains__)
        upload = await self._batches.files.create()
        try:
            await self._receive(request, checker, upload)
            file = await self._batches.files.add(upload, tenant=request.tenant, purpose=MESSAGE_BATCH,
                                                 filename="requests.jsonl", expires_s=KEEP_S)
        finally:
            await upload.close()
        batch, is_new = await self._store(request, checker, file, key)
        if not is_new:
            await self._batches.files.discard(file)
        return _reply(batch)

    async def _receive(self, request: EndpointRequest, checker: RequestChecker, upload: Upload) -> None:
        splitter, n_bytes = RequestSplitter(self._current.config.max_body_bytes), 0
        while data := await request.body.read():
            n_bytes += len(data)
            if n_bytes > MAX_BODY_BYTES:
                raise Rejected(f"The request's body is larger than {MAX_BODY_BYTES} bytes.", status=413,
                               code="body_too_large")
            lines = b"".join([checker.encode(element) for element in splitter.feed(data)])
            if lines:
                await upload.write(lines)
        splitter.close()
        checker.close()

    async def _store(self, request: EndpointRequest, checker: RequestChecker, file: FileInfo, key: str | None
                     ) -> tuple[Batch, bool]:
        try:
            return await self._batches.create(
                MESSAGES_ENDPOINT, file, tenant=request.tenant, digest=bytes.fromhex(file.sha256), key=key,
                n_total=checker.n_requests, model=checker.model, keep_s=KEEP_S,
                caller=request.caller)
        except StayfastError:
            await self._batches.files.discard(file)
            raise

    async def list_batches(self, request: EndpointRequest) -> EndpointReply:
        """A page of batches, newest first: after `after_id`, or before `before_id`."""
        query = request.query
        limit = parse_limit(query, DEFAULT_LISTED_MESSAGE_BATCHES, MAX_LISTED_MESSAGE_BATCHES)
        before_id, after_id = query.get("before_id"), query.get("after_id")
        if before_id is not None and after_id is not None:
            raise Rejected("after_id and before_id exclude each other.", param="after_id")
        page, has_more = await self._batches.list_batches(request.tenant, before_id or after_id, limit,
                                                          is_forward=before_id is None)
        return EndpointReply(body=encode_page([encode_message_batch(batch) for batch in page], has_more=has_more,
                                              is_anthropic=True))

    async def retrieve(self, request: EndpointRequest) -> EndpointReply:
        """One batch."""
        return _reply(await self._find(request))

    async def delete(self, request: EndpointRequest) -> EndpointReply:
        """Delete an ended batch with its results."""
        batch = await self._find(request)
        await self._batches.delete(batch.id, request.tenant)
        return EndpointReply(body=msgspec.json.encode({"id": batch.id, "type": "message_batch_deleted"}))

    async def cancel(self, request: EndpointRequest) -> EndpointReply:
        """Cancel a batch. One that has ended stays as it is."""
        return _reply(await self._batches.cancel(request.parameters["id"], request.tenant))

    async def read_results(self, request: EndpointRequest) -> EndpointReply:
        """The results of an ended batch. Raises Rejected (404) before its end."""
        batch = await self._find(request)
        if batch.output_file_id is None or not batch.state.is_final:
            raise Rejected("The batch has no results yet: its processing_status must be ended.", status=404,
                           code="no_results", param="id")
        files = self._batches.files
        info = await files.find(batch.output_file_id, request.tenant, (MESSAGE_BATCH,))
        if request.method == "HEAD":
            return EndpointReply(content_type=JSON_LINES, n_bytes=info.n_bytes)
        return EndpointReply(content_type=JSON_LINES, parts=await files.read(info), n_bytes=info.n_bytes)

    async def _find(self, request: EndpointRequest) -> Batch:
        return await self._batches.find(request.parameters["id"], request.tenant)


def _reply(batch: Batch) -> EndpointReply:
    return EndpointReply(body=msgspec.json.encode(encode_message_batch(batch)))
