"""Batches for their clients: create, find, list, cancel, delete. `jobs.coordinator` runs them."""

from collections.abc import Mapping

from msgspec.structs import replace

from stayfast.core.errors import Rejected, Shed
from stayfast.core.jobs import Batch, BatchState, Door, FileInfo
from stayfast.jobs.files import FileService, delete_contents, make_id
from stayfast.jobs.service import FULL_RETRY_S, JobService, store_error
from stayfast.keys.principal import Principal
from stayfast.stores.base import StoreUnavailable
from stayfast.wire.jobs.batches import WINDOW_S

BATCHES = "batches"  # the topic of batches with work for a coordinator
_PREFIXES: Mapping[Door, str] = {Door.BATCH: "batch_", Door.MESSAGE_BATCH: "msgbatch_"}


class BatchService:
    """The batches of one API. Every method raises StayfastError: 404 for another tenant's batch, 503 for a store that is
    full or unavailable.
    """

    def __init__(self, service: JobService, files: FileService, door: Door) -> None:
        self._service = service
        self._store = service.store
        self._door = door
        self.files = files

    async def create(self, endpoint: str, file: FileInfo, *, tenant: str | None, digest: bytes, key: str | None = None,
                     metadata: Mapping[str, str] | None = None, output_keep_s: float | None = None, n_total: int = 0,
                     model: str = "", keep_s: float | None = None, caller: Principal | None = None) -> tuple[Batch, bool]:
        """The stored batch, and whether it is new: else it is the earlier one of this idempotency key. n_total: 0 if the
        file was not validated. keep_s: the record's time from now; None: from its end. Raises Rejected (409) for a key of
        another request.
        """
        await self.check_room(tenant, n_total)
        now = self._service.clock.wall()
        batch = Batch(id=make_id(_PREFIXES[self._door], now), door=self._door, tenant=tenant, endpoint=endpoint,
                      input_file_id=file.id, state=BatchState.VALIDATING, created_at=now, expires_at=now + WINDOW_S,
                      model=model, metadata=metadata or {}, n_total=n_total, output_keep_s=output_keep_s,
                      drop_at=now + keep_s if keep_s is not None else None, idempotency_key=key, digest=digest,
                      is_reported=bool(self._service.config.webhooks))
        if caller is not None and caller.key_id:
            batch = replace(batch, key_id=caller.key_id, routes=caller.scopes.routes)
        try:
            stored, is_new = await self._store.create_batch(batch)
            await self._store.notify(BATCHES)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if stored.digest != digest or stored.door is not self._door:
            raise Rejected("The idempotency key was used for another request.", status=409, code="idempotency_conflict",
                           param="idempotency-key")
        return stored, is_new

    async def check_room(self, tenant: str | None, n_more: int = 0) -> None:
        """Raises Shed (429) if the tenant has too many unfinished jobs, Rejected (413) if `n_more` alone are too many."""
        maximum = self._service.config.max_queued
        if n_more > maximum:
            raise batch_too_large(n_more, maximum)
        try:
            n_unfinished = await self._store.count_unfinished(tenant)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if n_unfinished + max(n_more, 1) > maximum:
            raise Shed(f"Too many unfinished jobs: {n_unfinished} of at most {maximum}. Wait until some have ended.",
                       reason="jobs_queued", status=429, code="too_many_jobs", retry_after_s=FULL_RETRY_S)

    async def find(self, batch_id: str, tenant: str | None) -> Batch:
        """Raises Rejected (404) for an unknown batch, and for one of another tenant."""
        try:
            batch = await self._store.find_batch(batch_id)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if batch is None or batch.tenant != tenant or batch.door is not self._door:
            raise unknown_batch(batch_id)
        return batch

    async def list_batches(self, tenant: str | None, after_id: str | None, limit: int, *, is_forward: bool = True
                           ) -> tuple[list[Batch], bool]:
        """A page, newest first, and whether there are more in its direction."""
        if after_id is not None:
            await self.find(after_id, tenant)
        try:
            page = await self._store.list_batches(tenant, (self._door,), after_id, limit + 1, is_forward=is_forward)
        except StoreUnavailable as error:
            raise store_error(error) from None
        has_more = len(page) > limit
        return (page[:limit] if is_forward else page[-limit:]), has_more

    async def cancel(self, batch_id: str, tenant: str | None) -> Batch:
        """Cancel a batch; a second call changes nothing. A batch that has ended is returned as it is."""
        await self.find(batch_id, tenant)
        try:
            batch = await self._store.cancel_batch(batch_id)
            await self._store.notify(BATCHES)
        except StoreUnavailable as error:
            raise store_error(error) from None
        return batch if batch is not None else await self.find(batch_id, tenant)

    async def delete(self, batch_id: str, tenant: str | None) -> None:
        """Delete an ended batch with its files. Raises Rejected (409) for one that has not ended."""
        batch = await self.find(batch_id, tenant)
        if not batch.state.is_final:
            raise Rejected("The batch has not ended. Cancel it first.", status=409, code="batch_in_progress", param="id")
        try:
            for file_id in (batch.input_file_id, batch.output_file_id):
                if file_id is not None:
                    await delete_contents(self._service, file_id)
                    await self._store.delete_file(file_id)
            await self._store.delete_batch(batch_id)
        except StoreUnavailable as error:
            raise store_error(error) from None


def unknown_batch(batch_id: str) -> Rejected:
    """The error for an unknown batch, and for one of another tenant."""
    return Rejected(f"No batch has the id {batch_id[:80]!r}: it has expired, was deleted, or belongs to another key.",
                    status=404, code="batch_not_found", param="batch_id")


def batch_too_large(n_requests: int, max_queued: int) -> Rejected:
    """The error for a batch that no wait makes room for."""
    return Rejected(f"The batch has {n_requests} requests, and a key may have {max_queued} unfinished ones "
                    "(jobs.max_queued). Split it into smaller batches.", status=413, code="batch_too_large",
                    param="requests")
