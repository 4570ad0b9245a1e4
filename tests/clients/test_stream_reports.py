"""The report in a stream's own data: the real SDKs pass it on, and read everything else as if it were not there."""

from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest

from tests.clients.asks import WHOLE_TEXT, prompt
from tests.clients.gateway import DIALECTS
from tests.clients.script import N_OUTPUT_TOKENS, N_PIECES_BEFORE_FAULT, TEXT

pytestmark = pytest.mark.sockets

TEMPLATE = "Later."
HALF = "".join(TEXT[:N_PIECES_BEFORE_FAULT])


@dataclass
class Streamed:
    """What an SDK made of one stream."""

    text: str = ""
    reports: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    n_output: int | None = None

    def see(self, event: Any) -> None:
        """Note the report of an event or of what stands in it."""
        report = (event.model_extra or {}).get("stayfast")
        if report is not None:
            self.reports.append(report)


class Clients:
    """One stream by each API, with usage."""

    def __init__(self, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic) -> None:
        self._openai = openai_client
        self._anthropic = anthropic_client

    def chat(self, model: str, ask: str) -> Streamed:
        streamed = Streamed()
        for chunk in self._openai.chat.completions.create(
                model=model, messages=[{"role": "user", "content": ask}], stream=True,
                stream_options={"include_usage": True}):
            streamed.see(chunk)
            for choice in chunk.choices:
                streamed.text += choice.delta.content or ""
                streamed.reason = choice.finish_reason or streamed.reason
            if chunk.usage is not None:
                streamed.n_output = chunk.usage.completion_tokens
        return streamed

    def responses(self, model: str, ask: str) -> Streamed:
        with self._openai.responses.stream(model=model, input=ask) as stream:
            *_, last = stream  # `get_final_response` knows `response.completed` alone, not `response.incomplete`
        assert last.type in ("response.completed", "response.incomplete")
        final = last.response
        text = "".join(part.text for item in final.output if item.type == "message" for part in item.content
                       if part.type == "output_text")
        streamed = Streamed(text, reason=final.status, n_output=final.usage.output_tokens if final.usage else None)
        streamed.see(final)
        return streamed

    def messages(self, model: str, ask: str) -> Streamed:
        streamed = Streamed()
        with self._anthropic.messages.stream(model=model, max_tokens=64,
                                             messages=[{"role": "user", "content": ask}]) as stream:
            for event in stream:
                if event.type == "message_delta":
                    streamed.see(event)
            final = stream.get_final_message()
        streamed.text = "".join(block.text for block in final.content if block.type == "text")
        streamed.reason, streamed.n_output = final.stop_reason, final.usage.output_tokens
        return streamed


@pytest.fixture
def clients(openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic) -> Clients:
    """All three."""
    return Clients(openai_client, anthropic_client)


APIS = pytest.mark.parametrize("api", ["chat", "responses", "messages"])
ANY_UPSTREAM = pytest.mark.parametrize("dialect", DIALECTS)


@APIS
@ANY_UPSTREAM
def test_an_ordinary_stream_has_no_report(clients: Clients, api: str, dialect: str, marker: str) -> None:
    """Its head says it all."""
    streamed: Streamed = getattr(clients, api)(f"via-{dialect}", prompt(marker))
    assert (streamed.text, streamed.reports) == (WHOLE_TEXT, [])


@APIS
@ANY_UPSTREAM
def test_report_event_replaces_early_headers(clients: Clients, api: str, dialect: str, marker: str) -> None:
    """After a keep-alive the last event says where the time went; text, reason and usage stand as ever."""
    streamed: Streamed = getattr(clients, api)(f"via-{dialect}", prompt(marker, "slow"))
    assert (streamed.text, streamed.n_output) == (WHOLE_TEXT, N_OUTPUT_TOKENS)
    (report,) = streamed.reports
    assert report["request_id"].startswith("req_")
    assert (report["upstream"], "degraded" in report) == (dialect, False)
    assert report["attempts"] >= 1  # a slow start may be hedged, by the times that other tests have shown the gateway
    timings_ms = report["timings_ms"]
    assert timings_ms["call"] >= 400
    assert timings_ms["total"] >= sum(spent for stage, spent in timings_ms.items() if stage != "total") - 1


@APIS
@ANY_UPSTREAM
def test_template_answer_is_marked(clients: Clients, api: str, dialect: str, marker: str) -> None:
    """It looks like an answer; the report says that it is none."""
    streamed: Streamed = getattr(clients, api)(f"brief-{dialect}", prompt(marker, "hang_at_once"))
    assert streamed.text == TEMPLATE
    (report,) = streamed.reports
    assert (report["upstream"], report["degraded"], report["attempts"]) == ("(template)", "template", 1)


@APIS
@ANY_UPSTREAM
def test_partial_answer_is_marked(clients: Clients, api: str, dialect: str, marker: str) -> None:
    """A stream that was cut at its deadline knows so only at its end."""
    streamed: Streamed = getattr(clients, api)(f"brief-{dialect}", prompt(marker, "hang_midway"))
    assert (streamed.text, streamed.reason) == (HALF, {"chat": "length", "responses": "incomplete"}.get(api, "max_tokens"))
    (report,) = streamed.reports
    assert (report["upstream"], report["degraded"]) == (dialect, "partial")
