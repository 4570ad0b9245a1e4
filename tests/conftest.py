"""`--serial none|only`: the two halves in which `make test` runs all tests, in addition to any `-m`."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("stayfast", settings(), deadline=None)  # of one example: a busy machine is not a failure
settings.load_profile("stayfast")


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


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gateways that tests start store their jobs in a folder of this run, never in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
