"""The system of one route with a semantic cache."""

from random import Random

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsText, load_settings

TEXT = """
upstreams:
  sim: {kind: simulated}
routes:
  faq: {upstreams: [sim], cache: {mode: semantic, max_temperature: 1, WITH}}
"""


def settings(words: str, more: str = "") -> Settings:
    """The settings with these words about the cache."""
    return load_settings(SettingsText("test", TEXT.replace("WITH", words) + more), {}, kinds=KINDS)


def system(its: Settings, old: System | None = None) -> System:
    """The system of these settings, on the real clock."""
    return build(its, Observers(its, SystemClock()), {}, SystemClock(), Random(1), old=old)
