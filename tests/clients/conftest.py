"""One upstream and one gateway for all tests of this folder, and a client of each SDK."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from tests.clients.callers import CLIENT_TIMEOUT_S, Caller, Chat, Messages, Responses
from tests.clients.gateway import DIALECTS, Gateway, running_gateway
from tests.clients.upstream import Upstream, running_upstream


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    """The fake provider."""
    with running_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="session")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway in front of it."""
    with running_gateway(upstream, tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _gateway_stderr(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the gateway writes to standard error during a test stands beside the test's failure."""
    errors: Path | None = request.getfixturevalue("gateway").errors if "gateway" in request.fixturenames else None
    n_before = errors.stat().st_size if errors is not None else 0
    yield
    if errors is not None:
        written = errors.read_bytes()[n_before:].decode(errors="replace")
        request.node.add_report_section("teardown", "stderr of the gateway", written)


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """What the upstream speaks."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def model(dialect: str) -> str:
    """The route to the upstream that speaks `dialect`."""
    return f"via-{dialect}"


@pytest.fixture
def marker() -> str:
    """A word for this test's prompts, by which the upstream finds its requests."""
    return f"marker-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def openai_client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """OpenAI's SDK, pointed at the gateway."""
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-client", max_retries=0, timeout=CLIENT_TIMEOUT_S) as client:
        yield client


@pytest.fixture(scope="session")
def anthropic_client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    """Anthropic's SDK, pointed at the gateway."""
    with anthropic.Anthropic(base_url=gateway.origin, api_key="sk-client", max_retries=0,
                             timeout=CLIENT_TIMEOUT_S) as client:
        yield client


@pytest.fixture(params=["chat", "responses", "messages"])
def caller(request: pytest.FixtureRequest, openai_client: openai.OpenAI,
           anthropic_client: anthropic.Anthropic) -> Caller:
    """Each API of each SDK."""
    match request.param:
        case "chat":
            return Chat(openai_client)
        case "responses":
            return Responses(openai_client)
        case _:
            return Messages(anthropic_client)
