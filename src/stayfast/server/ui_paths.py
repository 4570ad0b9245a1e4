"""The paths of the page: which need no key, and which data a browser's session may read."""

PAGE = "/ui"
SESSION, LOGIN, LOGOUT = "/ui/session", "/ui/login", "/ui/logout"
_READ_METHODS = ("GET", "HEAD")
_OWN_METHODS = {SESSION: _READ_METHODS, LOGIN: ("POST",), LOGOUT: ("POST",)}
_DATA = ("/debug/state", "/metrics")


def is_page_path(path: str) -> bool:
    """Whether `UiApp` answers it."""
    return path == PAGE or path.startswith("/ui/")


def page_methods(path: str) -> tuple[str, ...]:
    """The methods of a path of the page."""
    return _OWN_METHODS.get(path, _READ_METHODS)


def needs_no_key(path: str) -> bool:
    """Files hold no data, and the page must load before its user signs in. A sign-in has its key in `authorization`."""
    return is_page_path(path) and path != LOGIN


def may_read_by_session(method: str, path: str) -> bool:
    """Whether the cookie of a session authorises a request. Never LLM endpoints, never a change."""
    return method in _READ_METHODS and (path in _DATA or path.startswith("/admin/"))
