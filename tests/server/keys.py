"""Keys of a client and an admin, for tests."""

from stayfast.server.auth import digest_key
from stayfast.server.config import ServerConfig

KEY, ADMIN = "k" * 20, "a" * 20
KEYS = ServerConfig(port=0, keys={"app": digest_key(KEY), "ops": digest_key(ADMIN)}, admins=("ops",))
