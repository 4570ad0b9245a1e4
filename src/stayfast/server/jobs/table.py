"""All endpoints of durable work."""

from stayfast.jobs.service import JobService
from stayfast.server.backend import ActiveSystem
from stayfast.server.jobs.admin_jobs import AdminJobs
from stayfast.server.jobs.endpoint import Endpoint
from stayfast.server.jobs.jobs import JobEndpoints


def make_endpoints(service: JobService, current: ActiveSystem) -> tuple[Endpoint, ...]:
    """The endpoints of one service; their paths are those of `server.job_paths`."""
    return (*JobEndpoints(service, current).endpoints(), *AdminJobs(service).endpoints())
