"""Forms with a file (multipart/form-data, RFC 7578), parsed part by part: the file never is in memory as a whole."""

from typing import Final

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from stayfast.core.errors import Rejected

MAX_FIELD_BYTES: Final = 65_536
MAX_FIELDS: Final = 64
MAX_FILENAME: Final = 255  # characters
_FILE: Final = "file"


class UploadForm:
    """The fields of a form as they arrive. The contents of the part `file` are returned by `feed`, in order."""

    __slots__ = ("_contents", "_field", "_header", "_headers", "_is_ended", "_is_file", "_n_parts", "_parser", "_value",
                 "fields", "filename")

    def __init__(self, content_type: str) -> None:
        """Raises Rejected (415) for another content type."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise Rejected("content-type must be multipart/form-data with a boundary.", status=415,
                           code="unsupported_media_type", param="content-type")
        self._parser = MultipartParser(boundary, {
            "on_part_begin": self._begin_part, "on_part_data": self._add_data, "on_part_end": self._end_part,
            "on_header_field": self._add_header_name, "on_header_value": self._add_header_value,
            "on_header_end": self._end_header, "on_headers_finished": self._end_headers, "on_end": self._end})
        self.fields: dict[str, str] = {}
        self.filename: str | None = None  # of the file; None: it has not arrived
        self._headers: dict[bytes, bytes] = {}
        self._header: list[bytes] = [b"", b""]
        self._contents: list[bytes] = []
        self._field = ""
        self._value = bytearray()
        self._is_file = self._is_ended = False
        self._n_parts = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The next bytes of the body; returns those that belong to the file. Raises Rejected for a malformed form."""
        try:
            self._parser.write(data)
        except MultipartParseError:
            raise _malformed("its parts cannot be separated") from None
        contents, self._contents = self._contents, []
        return contents

    def close(self) -> str:
        """The file's name, at the end of the body. Raises Rejected if the form is incomplete or has no file."""
        if not self._is_ended:
            raise _malformed("it ends in the middle of a part")
        if self.filename is None:
            raise Rejected("The form has no part `file` with a filename.", code="missing_field", param=_FILE)
        return self.filename

    def _begin_part(self) -> None:
        self._n_parts += 1
        if self._n_parts > MAX_FIELDS:
            raise _malformed(f"it has more than {MAX_FIELDS} parts")
        self._headers, self._value = {}, bytearray()

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header = [b"", b""]

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise _malformed("a part has no name")
        self._field = name.decode("utf-8", "replace")
        self._is_file = self._field == _FILE
        if self._is_file:
            if self.filename is not None:
                raise _malformed("it has more than one file")
            self.filename = _safe_name(options.get(b"filename", b"").decode("utf-8", "replace"))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._contents.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            raise _malformed(f"a field is larger than {MAX_FIELD_BYTES} bytes")

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._field] = self._value.decode("utf-8", "replace")

    def _end(self) -> None:
        self._is_ended = True


def _safe_name(name: str) -> str:
    """The last part of a path, without control characters: it is shown, and never used as a path."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(sign for sign in last if sign.isprintable())[:MAX_FILENAME] or "upload"


def _malformed(why: str) -> Rejected:
    return Rejected(f"The form is malformed: {why}.", code="malformed_form")
