"""`--serial none|only`: the two halves in which `make test` runs all tests, in addition to any `-m`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Not a mark expression: a second `-m`, such as a user's own, takes the place of the first."""
    parser.addoption("--serial", choices=("none", "only"), default=None, help="leave out what is marked serial, or the rest")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the half that was asked for."""
    half = config.getoption("--serial")
    if half is None:
        return
    halves: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        halves[(item.get_closest_marker("serial") is not None) == (half == "only")].append(item)
    config.hook.pytest_deselected(items=halves[False])
    items[:] = halves[True]
