"""Settings of a gateway that shares its limits with others."""

from dataclasses import dataclass
from re import fullmatch
from typing import Annotated, Literal

from stayfast.core.setting import Secret, SettingDoc, check_bounds

_USER = r"([^\s/?#@]*@)?"  # a password with / or @ must have %2F or %40
REDIS_URL = (rf"rediss?://{_USER}([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?(/[0-9]{{0,5}})?"
             rf"|unix://{_USER}/[^\s?#@]+(\?db=[0-9]{{1,5}})?")
REDIS_URL_FORM = ("redis://user:password@host:6379/0, rediss://host or unix:///path?db=0, with %2F and %40 for / and @ in a "
                  "password")

OnLoss = Literal["open", "local", "closed"]
ON_LOSS = ("open", "local", "closed")


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """The Redis or Valkey server through which gateways share state. `url` None: this gateway shares nothing."""

    url: Annotated[Secret | None, SettingDoc(
        "Redis or Valkey, as redis://:password@host:6379/0, rediss:// for TLS, or unix:///path?db=0; needs pip install "
        "'.[redis]' in Stayfast's checkout. null: this gateway alone.")] = None
    prefix: Annotated[str, SettingDoc(
        "Prefix of its key names; gateways with the same one share.", pattern=r"[A-Za-z0-9_.-]{1,64}",
        form="letters, digits and _ . -")] = "stayfast"
    gateway: Annotated[str, SettingDoc(
        "Name of this gateway in lists and metrics. Empty: the host's name.", pattern=r"[A-Za-z0-9_.-]{0,64}",
        form="letters, digits and _ . -")] = ""
    heartbeat_s: Annotated[float, SettingDoc(
        "Time between heartbeats; a gateway counts as gone after three.", minimum=0.1, maximum=60)] = 1.0
    on_loss: Annotated[OnLoss, SettingDoc(
        "What limits without their own `on_loss` do while the server is unreachable. local: continue with the last share. "
        "open: admit all. closed: admit nothing.")] = "local"
    expected_gateways: Annotated[int, SettingDoc(
        "Number of gateways to assume until the server answers for the first time.", minimum=1, maximum=10_000)] = 1

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.url is not None and not fullmatch(REDIS_URL, self.url.reveal()):
            raise ValueError(f"url must be like {REDIS_URL_FORM}")
