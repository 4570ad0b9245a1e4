"""Settings of replicas and of the pools that they form."""

from dataclasses import dataclass
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """How one engine of your own becomes ready (docs/warm.md). Needs `probe`."""

    phases: Annotated[Literal["auto", "on", "off"], SettingDoc(
        "Whether it is used only when ready, and little at first. auto: for the kinds vllm, sglang, llamacpp, tgi, trtllm "
        "and embedded.")] = "auto"
    ready_by: Annotated[Literal["token", "health"], SettingDoc(
        "What shows that it is ready. token: an answer of one token. health: its health endpoint, which many engines answer "
        "before their first token is quick.")] = "token"
    slow_start_s: Annotated[float, SettingDoc(
        "Time in which its share of the requests grows from 10 % to 100 % after a start. 0: all at once.",
        minimum=0, maximum=3600)] = 30.0
    check_s: Annotated[float, SettingDoc(
        "Time between two checks of its health, by each worker.", minimum=0.1, maximum=300)] = 2.0
    cold_start_s: Annotated[float, SettingDoc(
        "Time from its start to its first token, until that is learned.", more_than=0, maximum=86_400)] = 60.0
    wake: Annotated[bool, SettingDoc(
        "Wake it when it sleeps and is needed: /wake_up of vLLM (in its development mode), /resume_memory_occupation of "
        "SGLang.")] = False
    idle_unload_s: Annotated[float, SettingDoc(
        "Time without requests after which the engine unloads its model, such as sleep_idle_seconds of llama.cpp. A request "
        "of one token is sent after half of it. 0: never.", minimum=0, maximum=604_800)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class ReplicaPoolConfig:
    """The replicas of one route: how many must be ready, and between which bounds they scale (docs/scaling.md)."""

    min_warm: Annotated[int, SettingDoc(
        "Replicas that must be ready. While fewer are, sleeping ones are woken and a finding says so.",
        minimum=0, maximum=1000)] = 1
    max_hold_s: Annotated[float, SettingDoc(
        "Most time that a request waits for a replica that starts. 0: none waits.", minimum=0, maximum=3600)] = 60.0
    max_replicas: Annotated[int, SettingDoc("Most replicas that the advice asks for.", minimum=1, maximum=10_000)] = 10
    scale_to_zero: Annotated[bool, SettingDoc(
        "Whether the advice may be 0 replicas. Only with min_warm: 0.")] = False
    quiet_s: Annotated[float, SettingDoc(
        "Time with less load before the advice falls; at least three cold starts.", minimum=0, maximum=86_400)] = 300.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.scale_to_zero and self.min_warm:
            raise ValueError(f"scale_to_zero must be false where min_warm is {self.min_warm}: that many must be ready")
        if self.min_warm > self.max_replicas:
            raise ValueError(f"max_replicas must be at least min_warm ({self.min_warm}), not {self.max_replicas}")

    @property
    def min_replicas(self) -> int:
        """The least number of replicas that the advice may ask for."""
        return max(self.min_warm, 0 if self.scale_to_zero else 1)
