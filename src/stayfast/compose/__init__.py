"""F8: the only place where objects meet. `system` is the parts list, `process` how it is run, reloaded and stopped."""

from stayfast.compose.engines import companions
from stayfast.compose.process import serve
from stayfast.compose.system import Observers, System, build

__all__ = ["Observers", "System", "build", "companions", "serve"]
