"""An answer as the bytes that leave this process, and back: what another version wrote, or a broken disk, is no answer.

    1 byte   the form's version
    4 bytes  CRC-32 of key and rest, so that no answer is read under another key
    rest     msgpack of `Kept`

Members have names in it, so that a version may add some. One that means something else by a name must raise `VERSION`.
"""

from typing import Final
from zlib import crc32

import msgspec

from stayfast.stores.base import Kept

VERSION: Final = b"\x01"
_HEAD: Final = 5  # bytes before the msgpack
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Kept).decode


def packed(key: bytes, kept: Kept) -> bytes:
    """An answer that is to be kept under a key."""
    said = _encode(kept)
    return VERSION + crc32(said, crc32(key)).to_bytes(4, "big") + said


def unpacked(key: bytes, data: bytes) -> Kept:
    """What was kept under a key. Raises ValueError for anything else."""
    if data[:1] != VERSION:
        raise ValueError("it was written by another version")
    said = memoryview(data)[_HEAD:]
    if crc32(said, crc32(key)) != int.from_bytes(data[1:_HEAD], "big"):
        raise ValueError("it is not what was written")
    try:
        return _decode(said)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("it is no answer of this version") from None
