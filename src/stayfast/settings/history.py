"""Checks of the routes' histories: what their settings name."""

from collections.abc import Callable

from stayfast.settings.model import Settings
from stayfast.settings.problems import Path, quote, suggest

_ANY_MODEL = "*"


def check_histories(settings: Settings, add_problem: Callable[[Path, str], None]) -> None:
    """Unknown routes and stores, and routes that cannot summarize."""
    for name, route in settings.routes.items():
        history, path = route.context.history, ("routes", name, "context", "history")
        others = settings.routes.keys() - {name, _ANY_MODEL}
        if history.by and history.by not in others:
            add_problem((*path, "by"), f"no other route is named {quote(history.by)}{suggest(history.by, others)}")
        elif history.by and settings.routes[history.by].context.history.mode != "off":
            add_problem((*path, "by"), f"route {quote(history.by)} shortens histories itself: its summary would lack turns")
        if history.store and history.store not in settings.stores:
            add_problem((*path, "store"), f"unknown store {quote(history.store)}{suggest(history.store, settings.stores)}")
