"""What supervisors must wait for."""

from stayfast.server.config import ServerConfig
from stayfast.server.lifecycle import _CLOSE_S
from stayfast.workers.supervisor import WorkersConfig


def longest_stop_s(server: ServerConfig) -> float:
    """How long a gateway may take to stop, its parent's patience included."""
    return server.grace_s + server.drain_s + max(2 * _CLOSE_S, WorkersConfig(1, 0).margin_s)
