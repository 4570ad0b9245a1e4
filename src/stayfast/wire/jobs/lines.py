"""Lines of a batch file (JSON Lines): split, checked, and turned into requests.

Problem: a file of 200 MB and 50,000 lines must be refused as a whole if one line is bad, with the number of that line, and
without the file in memory. Rule: one pass checks all lines and runs none. Per line it stores a digest of the custom_id, and
no more. The codes of problems are OpenAI's; its documentation has no complete list, and those without a known equivalent
have names of the same form. What a body means to its endpoint is checked when it runs: such an error is the line's result.

When wrong: two different custom_ids have the same digest of 96 bits, with probability 2**-64 for a million lines.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final

import msgspec

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.conversation import RawObject
from stayfast.core.jobs import BatchProblem
from stayfast.core.types import Api
from stayfast.wire.jobs.response_objects import is_own_id

MAX_PROBLEMS: Final = 200  # reported of one file
MAX_INPUTS: Final = 50_000  # of all lines of a file for embeddings
MAX_CUSTOM_ID: Final = 512  # characters
RESPONSES_ENDPOINT: Final = "/v1/responses"
ENDPOINTS: Final = {"/v1/chat/completions": Api.CHAT, "/v1/completions": Api.COMPLETIONS, "/v1/embeddings": Api.EMBEDDINGS,
                    RESPONSES_ENDPOINT: Api.RESPONSES}
MESSAGES_ENDPOINT: Final = "/v1/messages"
EMBEDDINGS_ENDPOINT: Final = "/v1/embeddings"
_APIS: Final = {**ENDPOINTS, MESSAGES_ENDPOINT: Api.MESSAGES}
_MEMBERS: Final = ("custom_id", "method", "url", "body")
_MARK: Final = b"\xef\xbb\xbf"  # of UTF-8, which some editors write
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_TEXT: Final = msgspec.json.Decoder(str)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MAX_OUTPUT: Final = 1 << 24
_USUAL_OUTPUT: Final = 256  # tokens of an answer without a limit
_NO_OUTPUT: Final = b'"/v1/embeddings"'


class BatchLine(msgspec.Struct, frozen=True, gc=False):
    """One request of a batch."""

    n: int  # its line, from 1
    custom_id: str
    model: str
    body: bytes
    n_tokens: int  # estimated, input and output


class _Body(msgspec.Struct, gc=False):
    model: Any = None
    stream: Any = None
    background: Any = None
    previous_response_id: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    input: msgspec.Raw = msgspec.Raw(b"null")  # of embeddings


_BODY: Final = msgspec.json.Decoder(_Body)


def api_of(endpoint: str) -> Api:
    """The API of a batch's endpoint."""
    return _APIS[endpoint]


class LineSplitter:
    """Splits a file into lines as its parts arrive. Blank lines are counted and left out."""

    __slots__ = ("_max_bytes", "_rest", "n")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes  # of a line; the rest of a longer one is dropped, so that its parsing fails
        self._rest: list[bytes] = []
        self.n = 0  # lines so far

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines that end in `data`, with their numbers."""
        first, *others = data.split(b"\n")
        self._rest.append(first)
        if not others:
            self._limit_rest()
            return
        *whole, last = others
        for line in (b"".join(self._rest), *whole):
            yield from self._number(line)
        self._rest = [last]

    def close(self) -> Iterator[tuple[int, bytes]]:
        """The last line, if no line break ends it."""
        line = b"".join(self._rest)
        self._rest = []
        if line:
            yield from self._number(line)

    def _limit_rest(self) -> None:
        if sum(map(len, self._rest)) > self._max_bytes:
            self._rest = [b"".join(self._rest)[:self._max_bytes + 1]]

    def _number(self, line: bytes) -> Iterator[tuple[int, bytes]]:
        self.n += 1
        line = (line.removeprefix(_MARK) if self.n == 1 else line).strip()
        if line:
            yield self.n, line


class LineChecker:
    """Checks the lines of one batch, in order."""

    def __init__(self, endpoint: str, is_known_model: Callable[[str], bool], *, max_lines: int, max_line_bytes: int) -> None:
        self._endpoint = endpoint
        self._is_known_model = is_known_model
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._custom_ids: set[bytes] = set()
        self.problems: list[BatchProblem] = []
        self.n_lines = 0
        self._n_inputs = 0
        self.model = ""  # of the first line

    @property
    def is_hopeless(self) -> bool:
        """Whether checking more lines would report nothing more."""
        return (len(self.problems) >= MAX_PROBLEMS or self.n_lines > self._max_lines or self._n_inputs > MAX_INPUTS)

    def check(self, n: int, line: bytes) -> None:
        """Add the problems of line `n`."""
        self.n_lines += 1
        if self.n_lines > self._max_lines:
            self._add(None, "too_many_tasks", f"The batch file has more than {self._max_lines} requests.")
        elif len(line) > self._max_line_bytes:
            self._add(n, "line_too_large", f"This line is larger than {self._max_line_bytes} bytes.")
        else:
            self._check_members(n, line)

    def close(self) -> None:
        """Add the problems of the file as a whole."""
        if not self.n_lines:
            self._add(None, "empty_file", "The batch file is empty. It must have at least one request.")

    def _check_members(self, n: int, line: bytes) -> None:
        try:
            members = _OBJECT.decode(line)
            line.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._add(n, "invalid_json_line", "This line is not parseable as valid JSON.")
            return
        for name in members.keys() - set(_MEMBERS):
            self._add(n, "unknown_parameter", f"Unknown parameter: '{name[:64]}'.", name[:64])
        missing = [name for name in _MEMBERS if name not in members]
        for name in missing:
            self._add(n, "missing_required_parameter", f"Missing required parameter: '{name}'.", name)
        if not missing:
            self._check_values(n, members)

    def _check_values(self, n: int, members: RawObject) -> None:
        self._check_custom_id(n, _text(members["custom_id"]))
        if _text(members["method"]) != "POST":
            self._add(n, "invalid_method", "The method must be POST.", "method")
        url = _text(members["url"])
        if url not in _APIS:
            self._add(n, "invalid_url", f"The url must be one of {', '.join(ENDPOINTS)}.", "url")
        elif url != self._endpoint:
            self._add(n, "url_mismatch", f"The url must be the endpoint of the batch, {self._endpoint}.", "url")
        self._check_body(n, bytes(members["body"]))

    def _check_custom_id(self, n: int, custom_id: str | None) -> None:
        if not custom_id or len(custom_id) > MAX_CUSTOM_ID:
            self._add(n, "invalid_custom_id", f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters.", "custom_id")
            return
        if is_repeated(custom_id, self._custom_ids):
            self._add(n, "duplicate_custom_id", "The custom_id of this request is that of an earlier one. It must be unique "
                      "in a batch.", "custom_id")

    def _check_body(self, n: int, raw: bytes) -> None:
        try:
            body = _BODY.decode(raw)
        except msgspec.DecodeError:
            self._add(n, "invalid_body", "body must be an object.", "body")
            return
        if not isinstance(body.model, str) or not body.model:
            self._add(n, "missing_required_parameter", "Missing required parameter: 'body.model'.", "body.model")
        elif not self._is_known_model(body.model):
            self._add(n, "model_not_found", f"The model '{body.model[:128]}' does not exist here. GET /v1/models lists the "
                      "models.", "body.model")
        else:
            self.model = self.model or body.model
        if self._endpoint == EMBEDDINGS_ENDPOINT and self._n_inputs <= MAX_INPUTS:
            self._n_inputs += count_inputs(bytes(body.input))
            if self._n_inputs > MAX_INPUTS:
                self._add(None, "too_many_inputs", f"The batch file has more than {MAX_INPUTS} inputs of embeddings.")
        self._check_features(n, body)

    def _check_features(self, n: int, body: _Body) -> None:
        if body.stream not in (None, False):
            self._add(n, "streaming_unsupported", "A request of a batch cannot be streamed.", "body.stream")
        if body.background not in (None, False):  # its answer would be a response that is queued at the upstream
            self._add(n, "background_unsupported", "A request of a batch runs in the background anyway: leave it out.",
                      "body.background")
        before_id = body.previous_response_id
        if self._endpoint == RESPONSES_ENDPOINT and isinstance(before_id, str) and is_own_id(before_id):
            self._add(n, "previous_response_unsupported", "A request of a batch cannot continue a background response of "
                      "this gateway: its upstream does not know it. Send the whole conversation as input.",
                      "body.previous_response_id")

    def _add(self, n: int | None, code: str, message: str, param: str | None = None) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(BatchProblem(code, message, n, param))


def count_inputs(raw: bytes) -> int:
    """The texts in the `input` of embeddings: a text, tokens, or a list of either."""
    if not raw.startswith(b"["):
        return 1
    parts = _LIST.decode(raw)
    return len(parts) if parts and bytes(parts[0])[:1] in (b'"', b"[") else 1


def is_repeated(custom_id: str, seen: set[bytes]) -> bool:
    """Whether a custom_id is in `seen`; adds it."""
    digest = blake2b(custom_id.encode("utf-8", "replace"), digest_size=12).digest()
    n_before = len(seen)
    seen.add(digest)
    return len(seen) == n_before


def read_line(n: int, line: bytes) -> BatchLine:
    """A line that was checked before."""
    members = _OBJECT.decode(line)
    raw = bytes(members["body"])
    body = _BODY.decode(raw)
    wanted = (body.max_tokens, body.max_completion_tokens, body.max_output_tokens)
    n_output = max((n for n in wanted if isinstance(n, int) and 0 < n <= _MAX_OUTPUT),
                   default=0 if bytes(members["url"]) == _NO_OUTPUT else _USUAL_OUTPUT)
    return BatchLine(n, _TEXT.decode(members["custom_id"]), body.model, raw, max(1, len(raw) // BYTES_A_TOKEN + n_output))


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return _TEXT.decode(raw)
    except msgspec.DecodeError:
        return None
