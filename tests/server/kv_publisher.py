"""An engine's publisher of KV events, on real ZMQ sockets of loopback: PUB and ROUTER in a thread, as vLLM has them."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from tests.kv_recording import frames

END = (2**64 - 1).to_bytes(8, "big")


class KvPublisher:
    """buffer: batches that it can replay. has_topic: in replays, as versions since 2026-06 send it. Context manager."""

    def __init__(self, port: int, replay_port: int, *, buffer: int = 100, has_topic: bool = True) -> None:
        self.endpoint, self.replay = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay_port}"
        self.n_replays = 0
        self._buffer: deque[list[bytes]] = deque(maxlen=buffer)
        self._has_topic = has_topic
        self._number = 0
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind(self.endpoint)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve_replays, daemon=True)

    def __enter__(self) -> "KvPublisher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._pub.close(linger=0)
        self._context.term()

    def publish(self, *events: Any, is_lost: bool = False, ts: float | None = None) -> None:
        """One batch. is_lost: the subscriber does not receive it."""
        with self._lock:
            message = frames(self._number, *events, ts=ts, topic=b"kv-events")
            self._number += 1
            self._buffer.append(message)
        if not is_lost:
            self._pub.send_multipart(message)

    def send_raw(self, message: Sequence[bytes]) -> None:
        self._pub.send_multipart(list(message))

    def _serve_replays(self) -> None:
        router = self._context.socket(zmq.ROUTER)
        router.bind(self.replay)
        while not self._stopping.is_set():
            if not router.poll(20):
                continue
            client, empty, start = router.recv_multipart()
            with self._lock:
                self.n_replays += 1
                for topic, number, payload in self._buffer:
                    if number >= start:
                        router.send_multipart([client, empty, *([topic] if self._has_topic else []), number, payload])
            router.send_multipart([client, empty, b"", END, b""])
        router.close(linger=0)
