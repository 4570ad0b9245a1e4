"""What a gateway shares with others, put together from the settings."""

import socket

from stayfast.policy.fleet.config import FleetConfig


def gateway_id(config: FleetConfig, boot: str) -> str:
    """Identifies this gateway from its start to its end. boot: new with each start, the same in all workers."""
    name = config.gateway or "".join(char if char.isalnum() or char in "_.-" else "-" for char in socket.gethostname())
    return f"{name[:64] or 'gateway'}~{boot}"
