"""OpenAI's SDK, with what the gateway does not serve itself."""

import io
from collections.abc import Iterator

import openai
import pytest

from tests.clients.gateway import Gateway
from tests.server.passthrough.conftest import KEYS
from tests.server.passthrough.vendor import AUDIO, Vendor

pytestmark = pytest.mark.sockets


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.openai_url, api_key=KEYS["a"], max_retries=0, timeout=20) as client:
        yield client


def test_sdk_images_are_passed(client: openai.OpenAI, vendor: Vendor) -> None:
    answer = client.images.generate(model="gpt-image-1", prompt="a cat")
    assert answer.data is not None
    assert answer.data[0].b64_json == "aW1n"
    headers = vendor.last("/v1/images/generations").headers
    assert headers["authorization"] == "Bearer sk-vendor-secret"
    assert headers["openai-organization"] == "org-own"
    assert not any(KEYS["a"] in value for value in headers.values())


def test_sdk_transcription_of_file_is_passed(client: openai.OpenAI, vendor: Vendor) -> None:
    text = client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"w" * 300_000)).text
    assert int(text.split()[0]) > 300_000
    assert vendor.last("/v1/audio/transcriptions").headers["content-type"].startswith("multipart/form-data; boundary=")


def test_sdk_speech_is_streamed(client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(model="tts-1", voice="alloy", input="hi") as answer:
        parts = list(answer.iter_bytes())
    assert b"".join(parts) == b"".join(AUDIO)
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["x-stayfast-upstream"] == "vendor"


def test_sdk_moderation_and_delete_are_passed(client: openai.OpenAI, vendor: Vendor) -> None:
    assert client.moderations.create(input="x").id == "modr"
    assert client.vector_stores.delete("vs_1").deleted
    assert vendor.last("/v1/vector_stores/vs_1").method == "DELETE"


def test_sdk_files_named_in_settings_are_passed(client: openai.OpenAI) -> None:
    created = client.files.create(file=io.BytesIO(b"{}\n" * 1000), purpose="batch")
    assert created.id == "file-vendor"
    assert client.files.content("file-vendor").read() == b"line\n" * 100


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # the SDK's own use of `websockets`
def test_sdk_realtime_is_relayed(client: openai.OpenAI, vendor: Vendor) -> None:
    with client.realtime.connect(model="gpt-realtime") as connection:
        connection.send({"type": "response.create"})
        assert connection.recv_bytes() == b'{"type": "response.create"}'
    request = vendor.sockets[-1].request
    assert request is not None
    assert request.path == "/v1/realtime?model=gpt-realtime"
    assert request.headers["authorization"] == "Bearer sk-vendor-secret"


def test_sdk_errors_of_upstream_and_gateway_have_openai_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as limited:
        client.post("/status/429", body={}, cast_to=object)
    assert limited.value.response.headers["retry-after"] == "7"
    with pytest.raises(openai.InternalServerError) as refused:  # the gateway's key was refused, not the client's
        client.post("/status/401", body={}, cast_to=object)
    assert refused.value.status_code == 502
    assert "sk-vendor-secret" not in refused.value.response.text
    with pytest.raises(openai.BadRequestError):
        client.get("/images/..%2f..%2fadmin", cast_to=object)
