"""Facts about small classifiers and guards. Labels and rules are names of the operator's, never texts of clients."""

import msgspec


class TextClassified(msgspec.Struct, frozen=True, gc=False):
    """A text got a label. head: first, second (both were used), second_failed (the second one was late or is missing)."""

    classifier: str
    label: str
    head: str


class GuardDone(msgspec.Struct, frozen=True, gc=False):
    """The guard of a route ended. result: allow, flag, block, unfinished. rule: empty without a match."""

    route: str
    result: str
    rule: str


class RoutedByClass(msgspec.Struct, frozen=True, gc=False):
    """A request got a route by its class. target: `route` itself where the label names none."""

    route: str
    label: str
    target: str


ClassifierFact = TextClassified | GuardDone | RoutedByClass
