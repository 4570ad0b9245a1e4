"""The classifiers of a set of settings: their files and vectors, and the screens of routes that use them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.pipeline.classify.classifier import TextClassifier
from stayfast.pipeline.classify.screen import RouteScreen
from stayfast.pipeline.classify.vectors import SharedVectors, SyncEmbedder
from stayfast.settings import RouteSettings, Settings
from stayfast.stores.embedder import Embedders, NoEmbedder

if TYPE_CHECKING:
    from stayfast.stores.classifier_file import StoredClassifier


class UnusableClassifier(ValueError):
    """A file, its vectors, or a label that the settings name. The text begins with the setting."""


@dataclass(frozen=True, slots=True)
class ClassifierFiles:
    """What was read from disk. static: None: no classifier needs it."""

    static: SyncEmbedder | None = None
    stored: Mapping[str, "StoredClassifier"] = field(default_factory=dict)

    def needs_encoder(self, settings: Settings) -> bool:
        """Whether a head reads the vectors of the encoder, which semantic caches use."""
        known = self.static.id if self.static is not None else ""
        return any(embedder != known for name, stored in self.stored.items() for number, embedder in enumerate(
            stored.embedders) if number == 0 or settings.classifiers[name].second == "auto")


@dataclass(frozen=True, slots=True)
class Classifiers:
    """The classifiers of one system, and the vectors that all its readers of questions share."""

    vectors: SharedVectors = field(default_factory=SharedVectors)
    by_name: Mapping[str, TextClassifier] = field(default_factory=dict)


def read_classifier_files(settings: Settings, before: ClassifierFiles | None = None) -> ClassifierFiles:
    """Blocks: 0.1 s for the static embedder, unless `before` has it, and milliseconds for each file. Raises
    UnusableClassifier.
    """
    if not settings.classifiers:
        return ClassifierFiles()
    read = import_module("stayfast.stores.classifier_file")  # here: it needs packages that only an extra brings
    static = before.static if before is not None else None
    if static is None:
        try:
            static = import_module("stayfast.stores.static_embedder").load_static_embedder()
        except NoEmbedder as error:
            raise UnusableClassifier(f"classifiers: {error}") from None
    assert static is not None
    stored = {}
    for name, config in settings.classifiers.items():
        try:
            stored[name] = read.read_classifier(Path(config.file).expanduser())
        except read.ClassifierFileError as error:
            raise UnusableClassifier(f"classifiers.{name}.file: {error}") from None
        first = stored[name].embedders[0]
        if first.startswith("static-") and first != static.id:
            raise UnusableClassifier(f"classifiers.{name}.file: {config.file} was trained with the vectors {first}, and "
                                     f"this gateway has {static.id}: train it again")
        if first == static.id and stored[name].heads[0].weights.shape[1] != static.embed(["a"]).shape[1]:
            raise UnusableClassifier(f"classifiers.{name}.file: the weights of {config.file} do not fit the vectors "
                                     f"{first}: train it again")
        _check_labels(name, stored[name], settings)
    return ClassifierFiles(static, stored)


def _check_labels(name: str, stored: "StoredClassifier", settings: Settings) -> None:
    """Raises UnusableClassifier for a label in the settings that the file does not have."""
    known = set(stored.rule.labels)
    for route, route_settings in settings.routes.items():
        guard, classes = route_settings.guard, route_settings.classify
        used = {"guard": (*guard.block_labels, *guard.flag_labels) if guard.classifier == name else (),
                "classify.routes": tuple(classes.routes) if classes.by == name else ()}
        for place, labels in used.items():
            for label in labels:
                if label not in known:
                    raise UnusableClassifier(f"routes.{route}.{place}: classifier {name} has no label {label!r}; `stayfast "
                                             "classify show FILE` lists its labels")


def find_unusable_classifiers(settings: Settings) -> list[str]:
    """What keeps the gateway from starting, as lines; empty: nothing. Blocks as `read_classifier_files` does."""
    try:
        read_classifier_files(settings)
    except UnusableClassifier as error:
        return [str(error)]
    return []


def make_classifiers(settings: Settings, files: ClassifierFiles, embedding: Embedders | None, before: Classifiers | None, *,
                     clock: Clock, sink: Sink) -> Classifiers:
    """before: at a reload; its vectors stay known."""
    vectors = before.vectors if before is not None and before.vectors.static is files.static else SharedVectors(
        files.static)
    vectors.embedding = embedding
    return Classifiers(vectors, {name: TextClassifier(name, settings.classifiers[name], stored, vectors, clock=clock,
                                                      sink=sink) for name, stored in files.stored.items()})


def make_screen(name: str, route: RouteSettings, classifiers: Classifiers, clock: Clock, sink: Sink) -> RouteScreen | None:
    """The screen of a route; None: it has neither a guard nor routes by class."""
    if not route.guard.is_on and not route.classify.by:
        return None
    return RouteScreen(name, route.guard, route.classify, classifiers.by_name, clock=clock, sink=sink)


def mismatched_encoders(classifiers: Classifiers) -> list[str]:
    """Classifiers whose second head was trained on other vectors than those of the loaded encoder, one line each."""
    loaded = classifiers.vectors.encoder_id()
    static = classifiers.vectors.static
    known = {loaded, static.id if static is not None else None}
    return [f"classifier {name}: its file was trained with the vectors {embedder}, and this gateway has {loaded}: train it "
            "again, or set embedder.model" for name, one in classifiers.by_name.items()
            for embedder in one.stored.embedders if loaded is not None and embedder not in known]
