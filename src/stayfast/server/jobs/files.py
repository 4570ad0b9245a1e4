"""OpenAI's files: `/v1/files`. Uploads go to the disk part by part, and contents come from it the same way."""

from collections.abc import Mapping

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.jobs import FileInfo
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.files import FileService, Upload
from stayfast.server.jobs.endpoint import Endpoint, EndpointReply, EndpointRequest
from stayfast.wire.jobs.files import BATCH, LISTED, encode_file, parse_form_expiry, parse_purpose
from stayfast.wire.jobs.form import UploadForm
from stayfast.wire.jobs.pages import encode_page, parse_choice, parse_limit

MAX_LISTED = 10_000
FORM_BYTES = 1 << 20  # of the form around a file
DEFAULT_EXPIRY_S: Mapping[str, float] = {BATCH: 2_592_000.0}  # by purpose; the others are stored until they are deleted
BYTES = "application/octet-stream"


class FileEndpoints:
    """The endpoints of files."""

    def __init__(self, files: FileService, config: JobsConfig) -> None:
        self._files = files
        self._config = config

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them."""
        return (Endpoint("POST", "/v1/files", self.create, self._config.max_file_bytes + FORM_BYTES),
                Endpoint("GET", "/v1/files", self.list_files),
                Endpoint("GET", "/v1/files/{id}", self.retrieve),
                Endpoint("DELETE", "/v1/files/{id}", self.delete),
                Endpoint("GET", "/v1/files/{id}/content", self.read))

    async def create(self, request: EndpointRequest) -> EndpointReply:
        """Store an upload. Raises Rejected: 413 for a file that is too large, 400 for a bad form."""
        form = UploadForm(request.headers.get("content-type", ""))
        upload = await self._files.create()
        try:
            await self._receive(request, form, upload)
            purpose, expires_s = parse_purpose(form.fields), parse_form_expiry(form.fields)
            info = await self._files.add(upload, tenant=request.tenant, purpose=purpose, filename=form.close(),
                                         expires_s=expires_s or DEFAULT_EXPIRY_S.get(purpose))
        finally:
            await upload.close()
        return EndpointReply(body=msgspec.json.encode(encode_file(info)))

    async def _receive(self, request: EndpointRequest, form: UploadForm, upload: Upload) -> None:
        while data := await request.body.read():
            for contents in form.feed(data):
                if upload.n_bytes + len(contents) > self._config.max_file_bytes:
                    raise Rejected(f"The file is larger than {self._config.max_file_bytes} bytes.", status=413,
                                   code="file_too_large", param="file")
                await upload.write(contents)
        form.close()

    async def list_files(self, request: EndpointRequest) -> EndpointReply:
        """A page of files, newest first unless `order=asc`."""
        query = request.query
        limit = parse_limit(query, MAX_LISTED, MAX_LISTED)
        order = parse_choice(query, "order", ("asc", "desc"))
        after_id = query.get("after")
        if after_id is not None:
            await self._find(request, after_id)
        purpose = parse_choice(query, "purpose", LISTED)
        page, has_more = await self._files.list_files(request.tenant, purpose, LISTED, after_id, limit,
                                                      newest_first=order != "asc")
        return EndpointReply(body=encode_page([encode_file(info) for info in page], has_more=has_more))

    async def retrieve(self, request: EndpointRequest) -> EndpointReply:
        """One file's object."""
        return EndpointReply(body=msgspec.json.encode(encode_file(await self._find(request))))

    async def delete(self, request: EndpointRequest) -> EndpointReply:
        """Delete a file."""
        info = await self._find(request)
        await self._files.delete(info)
        return EndpointReply(body=msgspec.json.encode({"id": info.id, "object": "file", "deleted": True}))

    async def read(self, request: EndpointRequest) -> EndpointReply:
        """A file's contents, as they were uploaded."""
        info = await self._find(request)
        if request.method == "HEAD":
            return EndpointReply(content_type=BYTES, n_bytes=info.n_bytes)
        return EndpointReply(content_type=BYTES, parts=await self._files.read(info), n_bytes=info.n_bytes)

    async def _find(self, request: EndpointRequest, file_id: str | None = None) -> FileInfo:
        return await self._files.find(request.parameters["id"] if file_id is None else file_id, request.tenant, LISTED)
