"""The composition root. `system` builds the parts, `assembly` the gateway; `process` runs, reloads and stops them."""

from stayfast.compose.engines import engine_hosts
from stayfast.compose.process import serve, work
from stayfast.compose.system import Observers, System, build

__all__ = ["Observers", "System", "build", "engine_hosts", "serve", "work"]
