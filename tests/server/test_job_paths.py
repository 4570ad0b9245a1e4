"""The paths of durable work: templates, prefixes, methods, metric labels."""

from typing import cast

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.types import Api
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.service import JobService
from stayfast.server.backend import ActiveSystem
from stayfast.server.job_paths import METHODS, find_template, job_methods
from stayfast.server.jobs.table import make_endpoints
from stayfast.server.paths import allowed_methods, error_dialect, metric_label
from stayfast.stores.jobs.base import FileBodies, JobStore
from stayfast.testing import RecordingSink
from tests.server.fakes import FakeBackend


def test_each_endpoint_is_a_known_path_and_method() -> None:
    """An endpoint without its path in the list would be a 404."""
    service = JobService(cast("JobStore", None), cast("FileBodies", None), JobsConfig(), SystemClock())
    for endpoint in make_endpoints(service, ActiveSystem(FakeBackend()), RecordingSink()):
        assert endpoint.method in METHODS[endpoint.template]


@pytest.mark.parametrize(("path", "template"), [
    ("/v1/jobs", "/v1/jobs"), ("/openai/v1/jobs/job_1/events", "/v1/jobs/{id}/events"),
    ("/anthropic/v1/messages/batches/b/results", "/v1/messages/batches/{id}/results"),
    ("/v1/responses/resp_1", "/v1/responses/{id}"), ("/v1/jobs/", None), ("/v1/jobs//events", None), ("/jobs", None),
    ("/v1/responses", None), ("/openaix/v1/jobs", None)])
def test_find_template_knows_prefixes_and_parameters(path: str, template: str | None) -> None:
    """And labels metrics by it, so that ids make no series."""
    assert find_template(path) == template
    assert metric_label(path) == (template or ("/v1/responses" if path == "/v1/responses" else "other"))


def test_job_methods_have_head_where_get_is() -> None:
    """Only of known paths."""
    assert job_methods("/v1/jobs") == ("GET", "HEAD", "POST")
    assert job_methods("/v1/jobs/x/cancel") == ("POST",)
    assert allowed_methods("/v1/jobs/x/none") == ()
    assert error_dialect("/v1/messages/batches") is Api.MESSAGES
