"""All endpoints of durable work."""

from typing import cast

from stayfast.core.events import Sink
from stayfast.core.jobs import Door
from stayfast.jobs.batches import BatchService
from stayfast.jobs.files import FileService
from stayfast.jobs.service import JobService
from stayfast.keys.service import KeyService
from stayfast.server.backend import ActiveSystem
from stayfast.server.config import is_tenant_name
from stayfast.server.jobs.admin_jobs import AdminJobs
from stayfast.server.jobs.admin_keys import KeyEndpoints
from stayfast.server.jobs.admin_spend import SpendEndpoints
from stayfast.server.jobs.batches import BatchEndpoints
from stayfast.server.jobs.endpoint import Endpoint
from stayfast.server.jobs.files import FileEndpoints
from stayfast.server.jobs.jobs import JobEndpoints
from stayfast.server.jobs.message_batches import MessageBatchEndpoints
from stayfast.server.jobs.responses import ResponseEndpoints
from stayfast.stores.jobs.keys import KeyStore


def make_endpoints(service: JobService, current: ActiveSystem, sink: Sink) -> tuple[Endpoint, ...]:
    """The endpoints of one service; their paths are those of `server.job_paths`."""
    now, stored = service.clock.wall, cast("KeyStore", service.store)  # every job store is one
    keys = KeyService(service.store, stored, service.clock, sink, is_tenant_name)
    files = FileService(service)
    batches, message_batches = BatchService(service, files, Door.BATCH), BatchService(service, files, Door.MESSAGE_BATCH)
    groups = (JobEndpoints(service, current), ResponseEndpoints(service, current), FileEndpoints(files, service.config),
              BatchEndpoints(batches), MessageBatchEndpoints(message_batches, current), AdminJobs(service),
              KeyEndpoints(keys, current, now), SpendEndpoints(stored, now))
    return tuple(endpoint for group in groups for endpoint in group.endpoints())
