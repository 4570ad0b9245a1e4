"""OpenAI's batches: `/v1/batches`."""

from hashlib import blake2b

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Batch
from stayfast.jobs.batches import BatchService
from stayfast.server.jobs.endpoint import Endpoint, EndpointReply, EndpointRequest
from stayfast.wire.jobs.batches import encode_batch, parse_new_batch, read_key
from stayfast.wire.jobs.files import BATCH, LISTED
from stayfast.wire.jobs.pages import encode_page, parse_limit

MAX_CREATE_BYTES = 65_536
MAX_LISTED_BATCHES = 100
DEFAULT_LISTED_BATCHES = 20


class BatchEndpoints:
    """The endpoints of batches."""

    def __init__(self, batches: BatchService) -> None:
        self._batches = batches

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them."""
        return (Endpoint("POST", "/v1/batches", self.create),
                Endpoint("GET", "/v1/batches", self.list_batches),
                Endpoint("GET", "/v1/batches/{id}", self.retrieve),
                Endpoint("POST", "/v1/batches/{id}/cancel", self.cancel))

    async def create(self, request: EndpointRequest) -> EndpointReply:
        """Store a batch; its file is validated afterwards."""
        new = parse_new_batch(await request.read_body(MAX_CREATE_BYTES))
        keep_s, key = new.output_keep_s, read_key(request.headers)
        file = await self._batches.files.find(new.input_file_id, request.tenant, LISTED)
        if file.purpose != BATCH:
            raise Rejected(f"The file has the purpose {file.purpose}; upload it with the purpose {BATCH}.",
                           code="invalid_purpose", param="input_file_id")
        digest = blake2b(msgspec.json.encode(new, order="deterministic"), digest_size=16).digest()
        batch, _ = await self._batches.create(new.endpoint, file, tenant=request.tenant, digest=digest, key=key,
                                              metadata=new.metadata, output_keep_s=keep_s, caller=request.caller)
        return _reply(batch)

    async def list_batches(self, request: EndpointRequest) -> EndpointReply:
        """A page of batches, newest first."""
        limit = parse_limit(request.query, DEFAULT_LISTED_BATCHES, MAX_LISTED_BATCHES)
        page, has_more = await self._batches.list_batches(request.tenant, request.query.get("after"), limit)
        return EndpointReply(body=encode_page([encode_batch(batch) for batch in page], has_more=has_more))

    async def retrieve(self, request: EndpointRequest) -> EndpointReply:
        """One batch."""
        return _reply(await self._batches.find(request.parameters["id"], request.tenant))

    async def cancel(self, request: EndpointRequest) -> EndpointReply:
        """Cancel a batch. One that has ended stays as it is."""
        return _reply(await self._batches.cancel(request.parameters["id"], request.tenant))


def _reply(batch: Batch) -> EndpointReply:
    return EndpointReply(body=msgspec.json.encode(encode_batch(batch)))
