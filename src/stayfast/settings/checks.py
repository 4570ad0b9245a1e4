"""What is said of caches, stores and the embedder, held to each other and to what is on the disk."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path as FilePath

from stayfast.settings.model import Settings
from stayfast.settings.problems import Path, did_you_mean, dotted, quoted
from stayfast.settings.upstreams import RedisStoreSettings, SqliteStoreSettings
from stayfast.settings.yaml_nodes import Mapping as Tree
from stayfast.settings.yaml_nodes import Node, Scalar, below
from stayfast.stores.sqlite import why_not_a_store

Complain = Callable[[Path, str], None]
_INSTEAD_OF_THRESHOLD = ("max_error", "min_labels")  # of the calibrated mode only
_MODELS = ("model.onnx", "onnx/model.onnx", "model.safetensors")


def check_caches(settings: Settings, tree: Tree, complain: Complain) -> None:
    """Complain of all that cannot be, and of what would do nothing."""
    for name, route in settings.routes.items():
        _check_others(name, settings, complain)
        _check_what_does_nothing(("routes", name, "cache"), below(tree, "routes", name, "cache"), complain)
        if route.cache.store and route.cache.store not in settings.stores:
            hint = did_you_mean(route.cache.store, settings.stores)
            complain(("routes", name, "cache", "store"), f"there is no store {quoted(route.cache.store)}{hint}")
    for name, its in settings.stores.items():
        if isinstance(its, SqliteStoreSettings) and not FilePath(its.path).absolute().parent.is_dir():
            complain(("stores", name, "path"), "there is no such folder")
        if isinstance(its, RedisStoreSettings) and find_spec("redis") is None:
            complain(("stores", name, "kind"),
                     "redis needs a package that is not installed: pip install '.[redis]' in Stayfast's checkout")


def unusable(settings: Settings) -> list[str]:
    """What is named and cannot be used as the disk is now, a line each. A gateway starts without: it says so in its log, and
    such a cache is an exact one, such a store gives nothing.
    """
    found = []
    for name, its in settings.stores.items():
        if isinstance(its, SqliteStoreSettings) and (why := _why_no_file(FilePath(its.path))):
            found.append(f"{dotted(('stores', name, 'path'))}: {quoted(its.path)}: {why}")
    model = settings.embedder.model
    if model and (why := _why_no_model(FilePath(model).expanduser())):
        found.append(f"embedder.model: {quoted(model)}: {why}")
    return found


def _check_others(name: str, settings: Settings, complain: Complain) -> None:
    """The routes that a route's semantic cache asks."""
    cache, others = settings.routes[name].cache, settings.routes.keys() - {name}
    for field, asked in (("judge", cache.semantic.judge), ("verify", cache.semantic.verify)):
        if asked and asked not in others:
            message = f"there is no other route {quoted(asked)}{did_you_mean(asked, others)}"
            complain(("routes", name, "cache", field), message)
        elif asked and settings.routes[asked].cache.mode == "semantic":
            message = f"route {quoted(asked)} has a semantic cache, and would say what it said of other answers"
            complain(("routes", name, "cache", field), message)


def _check_what_does_nothing(path: Path, cache: Node | None, complain: Complain) -> None:
    """What a route says of its cache and nobody would ever look at."""
    said = cache.entries if isinstance(cache, Tree) else {}
    if said and "mode" not in said:
        complain((*path, next(iter(said))), "does nothing without a mode: add mode: exact or mode: semantic (or mode: off, "
                                            "to keep for later what is said here)")
    threshold = said["threshold"].value if "threshold" in said else None
    if threshold is None or (isinstance(threshold, Scalar) and threshold.is_null):
        return
    for name in _INSTEAD_OF_THRESHOLD:
        if name in said:
            complain((*path, name), "does nothing beside threshold, a fixed cosine that bounds no error: leave out one of "
                                    "the two, threshold where the error is to be bounded")


def _why_no_file(path: FilePath) -> str:
    if path.is_dir():
        return "this is a folder, and no file"
    return why_not_a_store(path) if path.exists() else ""


def _why_no_model(path: FilePath) -> str:
    """As `stores.onnx_embedder` will look for it."""
    if path.is_file():
        has_tokens = any((folder / "tokenizer.json").exists() for folder in (path.parent, path.parent.parent))
        return "" if has_tokens else "this file has no tokenizer.json beside it"
    if not path.is_dir():
        return "there is no such file or folder"
    if not any((path / model).exists() for model in _MODELS):
        return "this folder has no model.onnx and no model.safetensors"
    return "" if (path / "tokenizer.json").exists() else "this folder has no tokenizer.json"
