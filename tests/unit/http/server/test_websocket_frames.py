"""Messages of a server as frames."""

import pytest
from wsproto.connection import CLIENT, Connection
from wsproto.events import BytesMessage, TextMessage

from stayfast.http.server.websocket import encode_message


@pytest.mark.parametrize("n", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_encode_message_of_any_length_is_read_by_another_parser(n: int) -> None:
    """At the bounds of the three forms of a length."""
    client = Connection(CLIENT)
    text, data = "ö" + "x" * n, b"x" * n
    client.receive_data(encode_message(text) + encode_message(data))
    events = list(client.events())
    assert "".join(event.data for event in events if isinstance(event, TextMessage)) == text
    assert b"".join(event.data for event in events if isinstance(event, BytesMessage)) == data
