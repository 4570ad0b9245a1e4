"""A user's functions around a call: they see the request before it, and a whole answer after it (docs/extensions.md)."""

from stayfast.pipeline.hooks.hook import HookAnswer, HookRefused, HookRequest

__all__ = ["HookAnswer", "HookRefused", "HookRequest"]
