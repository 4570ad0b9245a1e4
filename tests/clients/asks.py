"""The requests of the tests of this folder, in each SDK's own types, and the expected answers."""

from typing import Any

from anthropic.types import ToolParam
from openai.types.chat import ChatCompletionFunctionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from tests.clients.script import TEXT

WHOLE_TEXT = "".join(TEXT)
PARIS = {"city": "Paris"}
OSLO = {"city": "Oslo"}
TOOL_NAME = "get_weather"
TOOL_ANSWERS = ("21 °C and \"sunny\"", "4 °C")
WEATHER_SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False,
}

CHAT_TOOL: ChatCompletionFunctionToolParam = {"type": "function", "function": {
    "name": TOOL_NAME, "description": "The weather of a city.", "parameters": WEATHER_SCHEMA, "strict": True}}
RESPONSES_TOOL: FunctionToolParam = {
    "type": "function", "name": TOOL_NAME, "description": "The weather of a city.", "parameters": WEATHER_SCHEMA,
    "strict": True}
MESSAGES_TOOL: ToolParam = {"name": TOOL_NAME, "description": "The weather of a city.", "input_schema": WEATHER_SCHEMA}


class Weather(BaseModel):
    """What the upstream answers where JSON was asked for."""

    city: str
    degrees: int


def prompt(marker: str, scenario: str = "good") -> str:
    """A prompt that the upstream can be found by, and that chooses what happens to it."""
    return f"What is the weather like? [[{scenario}]] {marker}"
