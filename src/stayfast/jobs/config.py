"""Settings of jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from re import fullmatch
from types import MappingProxyType
from typing import Annotated, Literal

from stayfast.core.setting import Secret, SettingDoc, check_bounds
from stayfast.policy.fleet.config import REDIS_URL, REDIS_URL_FORM
from stayfast.policy.jobs.windows import parse_window
from stayfast.wire.jobs.webhooks import EVENT_TYPES, decode_secret

_POSTGRES_URL = r"postgres(ql)?://[^\s/?#][^\s#]*|postgres(ql)?:///[^\s#]*[?&]host=[^\s#]+"


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """Where finished work is reported, as OpenAI's webhooks."""

    url: Annotated[str, SettingDoc("Address that receives the events.", pattern=r"https?://[^\s@]+",
                                   form="an http or https address without user and password")]
    secret: Annotated[Secret, SettingDoc("Signs the events: whsec_ and base64, as OpenAI's.")]
    events: Annotated[tuple[str, ...], SettingDoc(
        "Event types, such as batch.completed, response.failed, job.completed. Empty: all.")] = ()
    tenants: Annotated[tuple[str, ...], SettingDoc("Only the work of these keys. Empty: of all.")] = ()

    def __post_init__(self) -> None:
        check_bounds(self)
        decode_secret(self.secret.reveal())
        for kind in self.events:
            if kind not in EVENT_TYPES:
                raise ValueError(f"events: {kind!r} is not one of {', '.join(sorted(EVENT_TYPES))}")


@dataclass(frozen=True, slots=True)
class JobsConfig:
    """Durable jobs, batches and background responses."""

    workers: Annotated[Literal["inside", "none"], SettingDoc(
        "inside: this gateway runs jobs. none: it only accepts them, and `stayfast work` runs them.")] = "inside"
    store: Annotated[Secret | None, SettingDoc(
        "postgres://... for several machines (extra `postgres`). null: an SQLite file in `path`.")] = None
    path: Annotated[str, SettingDoc(
        "Folder of the SQLite file and of uploaded files. Empty: $XDG_STATE_HOME/stayfast/jobs, which is "
        "~/.local/state/stayfast/jobs by default.")] = ""
    wake: Annotated[Secret | None, SettingDoc(
        "redis://... to wake workers and pass tokens on faster; its loss costs latency, never a job.")] = None
    concurrency: Annotated[int, SettingDoc("Most jobs that one process runs at a time.", minimum=1, maximum=10_000)] = 64
    lease_s: Annotated[float, SettingDoc(
        "A worker without a heartbeat for this long has lost its jobs to the others.", minimum=1, maximum=3600)] = 30.0
    max_claims: Annotated[int, SettingDoc(
        "A job whose workers died this often goes to the dead-letter list.", minimum=1, maximum=100)] = 3
    max_attempts: Annotated[int, SettingDoc(
        "Attempts of a job whose upstream fails, with growing pauses; each one has the route's own retries.",
        minimum=1, maximum=1000)] = 8
    keep_s: Annotated[float, SettingDoc(
        "Time after its end for which a job and its result are stored.", minimum=60, maximum=31_536_000)] = 86_400.0
    keep_responses_s: Annotated[float, SettingDoc(
        "The same for background responses without `store: true`.", minimum=60, maximum=31_536_000)] = 600.0
    keep_files_s: Annotated[float, SettingDoc(
        "Time for which the files of a batch are stored.", minimum=3600, maximum=31_536_000)] = 2_592_000.0
    max_queued: Annotated[int, SettingDoc(
        "Most unfinished jobs of one key; else 429.", minimum=1, maximum=100_000_000)] = 200_000
    max_file_bytes: Annotated[int, SettingDoc("Largest uploaded file; else 413.", minimum=1024, maximum=4 << 30)] = 200 << 20
    max_batch_lines: Annotated[int, SettingDoc("Most lines of a batch file.", minimum=1, maximum=1_000_000)] = 50_000
    aging_s: Annotated[float, SettingDoc(
        "After this wait a job runs before all others.", minimum=1, maximum=31_536_000)] = 21_600.0
    webhooks: Annotated[tuple[WebhookConfig, ...], SettingDoc("Where finished work is reported.")] = ()
    windows: Annotated[Mapping[str, str], SettingDoc(
        "By route: the hours in which its batches run, like `22:00-06:00 Europe/Berlin`.")] = field(
        default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.store is not None and not fullmatch(_POSTGRES_URL, self.store.reveal()):
            raise ValueError("store must be like postgres://user:password@host:5432/database; leave it out for the embedded "
                             "store, whose folder is `path`")
        if self.wake is not None and not fullmatch(REDIS_URL, self.wake.reveal()):
            raise ValueError(f"wake must be like {REDIS_URL_FORM}")
        for text in self.windows.values():
            parse_window(text)

    @property
    def heartbeat_s(self) -> float:
        return self.lease_s / 3
