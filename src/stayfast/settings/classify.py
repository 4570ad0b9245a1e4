"""Checks of classifiers, guards and routes by class across settings."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path as FilePath

from stayfast.settings.model import RouteSettings, Settings
from stayfast.settings.problems import Path, quote, suggest

AddProblem = Callable[[Path, str], None]
PACKAGES = ("numpy", "tokenizers")
WEIGHTS = "wordllama"
INSTALL = ("pip install '.[classify]' in Stayfast's checkout installs the packages of classifiers; pip install --no-deps "
           "wordllama installs the weights of their embedder")


def check_classifiers(settings: Settings, add_problem: AddProblem) -> None:
    """Missing files and packages, and names that do not exist."""
    absent = [name for name in (*PACKAGES, WEIGHTS) if find_spec(name) is None] if settings.classifiers else []
    if absent:
        add_problem(("classifiers",), f"needs {', '.join(absent)}: {INSTALL}")
    for name, config in settings.classifiers.items():
        if not FilePath(config.file).expanduser().is_file():
            add_problem(("classifiers", name, "file"), f"no such file: {quote(config.file)}. `stayfast classify train` "
                        "writes one")
    for name, route in settings.routes.items():
        _check_route(name, route, settings, add_problem)


def _check_route(name: str, route: RouteSettings, settings: Settings, add_problem: AddProblem) -> None:
    known, others = settings.classifiers, settings.routes.keys() - {name}
    for field, classifier in (("guard", route.guard.classifier), ("classify", route.classify.by)):
        if classifier and classifier not in known:
            place: Path = ("routes", name, field, "classifier" if field == "guard" else "by")
            add_problem(place, f"there is no classifier {quote(classifier)}{suggest(classifier, known)}")
    targets: dict[Path, str] = {("routes", name, "classify", "routes", label): target
                                for label, target in route.classify.routes.items()}
    if route.classify.unknown:
        targets["routes", name, "classify", "unknown"] = route.classify.unknown
    for path, target in targets.items():
        if target not in settings.routes:
            add_problem(path, f"no other route is named {quote(target)}{suggest(target, others)}")
        elif target != name and settings.routes[target].classify.by:
            add_problem(path, f"route {quote(target)} chooses by class itself: a request is classified once")
