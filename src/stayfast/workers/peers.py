"""How the workers of one parent ask each other things: a question and an answer over a private Unix socket.

Problem: a client reaches one worker by chance, but asks about all of them. Rule: each worker listens on a socket of its own
in a folder that only their user can enter; whoever is asked something asks the others, all at once, and waits for them no
longer than `patience_s`. Both ways a message is a frame (server/framing.py). One that does not answer is left out, never
waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from stayfast.workers import shared_memory as board
from stayfast.workers.framing import encode_frame, read_frame

MAX_QUESTION_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024


@contextmanager
def meeting_place() -> Iterator[str | None]:
    """A folder for one parent's workers, that only its user can enter; None where nothing can be written.

    In memory where there is such a place: a container's root may be read-only, and a path in $TMPDIR longer than a socket's.
    """
    folder = None
    for parent in ("/dev/shm", None):  # noqa: S108 - mkdtemp makes a new folder in it, with mode 0700
        with suppress(OSError):
            folder = mkdtemp(prefix="stayfast-", dir=parent)
            board.prepare(Path(folder))
            break
    try:
        yield folder
    finally:
        if folder is not None:
            rmtree(folder, ignore_errors=True)


class Siblings:
    """One worker's place among the others. One loop's. Without a folder it is alone."""

    def __init__(self, folder: Path | None = None, n: int = 0, n_workers: int = 1, patience_s: float = 1.0) -> None:
        self.folder = folder
        self.n = n
        self.others = tuple(other for other in range(n_workers) if other != n) if folder is not None else ()
        self._patience_s = patience_s
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer the others from now on; `answer` must not raise. Raises OSError."""
        if self.folder is None:
            return

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError, TimeoutError):  # it went away, or has stopped waiting
                    async with asyncio.timeout(self._patience_s):
                        question = await read_frame(reader, MAX_QUESTION_BYTES)
                        if question is not None:
                            writer.write(encode_frame(await answer(question)))
                            await writer.drain()
            finally:
                writer.close()

        self._server = await asyncio.start_unix_server(serve, self._socket(self.n))

    async def ask(self, question: bytes) -> dict[int, bytes | None]:
        """Every other worker's answer, by its number; None: it gave none in time."""
        if not self.others:
            return {}
        async with asyncio.TaskGroup() as group:
            asked = {other: group.create_task(self._ask(other, question)) for other in self.others}
        return {other: task.result() for other, task in asked.items()}

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    async def _ask(self, other: int, question: bytes) -> bytes | None:
        try:
            async with asyncio.timeout(self._patience_s):
                reader, writer = await asyncio.open_unix_connection(self._socket(other))
                try:
                    writer.write(encode_frame(question))
                    return await read_frame(reader, MAX_ANSWER_BYTES)
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None

    def _socket(self, n: int) -> str:
        assert self.folder is not None
        return str(self.folder / f"{n}.sock")
