"""A vendor and a gateway in front of it, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from stayfast.server.auth import digest_key
from tests.clients.gateway import Gateway, started
from tests.ports import free_port
from tests.server.passthrough.vendor import Vendor, running_vendor

KEYS = {"a": "sf-" + "a" * 40, "b": "sf-" + "b" * 40, "boss": "sf-" + "c" * 40}

SETTINGS = """
server:
  host: 127.0.0.1
  keys: {{a: "{a}", b: "{b}", boss: "{boss}"}}
  admins: [boss]
log: {{format: json}}
upstreams:
  vendor: &vendor {{kind: openai, base_url: "{origin}/v1", key: sk-vendor-secret, probe: false,
                    headers: {{openai-organization: org-own}}}}
  small: {{<<: *vendor, limit: {{mode: fixed, max: 1, max_waiting: 0}}}}
  rated: {{<<: *vendor, rate: {{requests_per_minute: 1}}}}
  down: {{<<: *vendor, base_url: "http://127.0.0.1:{closed}/v1", breaker: {{consecutive_failures: 2}}}}
  live: {{<<: *vendor, base_url: "http://127.0.0.1:{sockets}/v1"}}
routes: {{m: [vendor]}}
tenants: {{b: {{quota: {{requests_per_minute: 2}}}}}}
passthrough:
  upstream: vendor
  paths: {{/v1/score: small, /v1/ocr: rated, /v1/evals: down, /v1/realtime: live, /v1/files: vendor, /v1/batches: vendor}}
  total_s: 30
  idle_s: 1
  max_body_bytes: 500000000
  socket_idle_s: 30
jobs: {{path: "{folder}/jobs"}}
"""


@pytest.fixture(scope="module")
def vendor() -> Iterator[Vendor]:
    with running_vendor() as vendor:
        yield vendor


@pytest.fixture(scope="module")
def gateway(vendor: Vendor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("passed")
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS.format(origin=vendor.origin, sockets=vendor.socket_port, closed=free_port(), folder=folder,
                                        **{name: digest_key(key) for name, key in KEYS.items()}))
    with started(settings, folder) as gateway:
        yield gateway
