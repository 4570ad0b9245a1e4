"""What the settings of a simulated provider mean. The bounds are the ones their own checks hold."""

from collections.abc import Mapping
from typing import Any

from stayfast.settings.about import About
from stayfast.upstreams.simulated import (
    PRESETS,
    ColdStart,
    EngineModel,
    FaultRule,
    Gaps,
    Lengths,
    Mixture,
    PromptCacheModel,
    ProviderConfig,
    Quota,
    Regime,
    Regimes,
    Sag,
    Stalls,
    Tariff,
)

_HOUR_S, _DAY_S = 3600, 86_400


def _share(doc: str) -> About:
    return About(doc, minimum=0, maximum=1)


def _sigma(doc: str) -> About:
    return About(doc, minimum=0, maximum=3)


def _wait(doc: str, maximum: float = _HOUR_S) -> About:
    return About(doc, minimum=0, maximum=maximum)


PROVIDER = {
    "preset": About("The numbers of a known provider; what is set beside it replaces its part.", words=tuple(PRESETS)),
    "seed": About("Everything that is drawn comes from it, the upstream's name and a request's number.",
                  minimum=0, maximum=2**32 - 1),
    "vendor": About("Whose rate-limit headers and overload errors it has. null: the preset's."),
    "ttft": About("Time to the first token, without queue and prefill. null: the preset's."),
    "gaps": About("The pace of a running answer. null: the preset's."),
    "output": About("How long answers are, where the request does not say."),
    "fills_max_tokens": About("Answers are as long as they may be, as with `ignore_eos` in the request."),
    "head_share": _share("Share of the time to the first token that passes before the response head. Assumed."),
    "prefill_per_token": _share("Share by which a token of the prompt lengthens the first wait; 0.0001: 10,000 double it."),
    "embedding_share": _share("An embedding takes this share of a time to the first token. Assumed."),
    "tail_correlation": _share("Of two requests of one session: correlation of their being in the tail. Assumed."),
    "luck_holds_s": About("A session's luck is drawn anew after so many seconds. Assumed.", more_than=0, maximum=_DAY_S),
    "stalls": About("Pauses inside running answers."),
    "sag": About("Answers whose pace drops on the way."),
    "regimes": About("Bad minutes, which all requests of a time share. null: none."),
    "cold_start": About("What the first requests after a silence wait for. null: nothing."),
    "quota": About("What may be used in a minute. null: anything."),
    "prompt_cache": About("What it remembers of prompts, by which provider's rules. null: nothing."),
    "engine": About("An inference engine: then waits rise with load, and gaps are the engine's. null: none."),
    "faults": About("Ways to fail; the first rule that strikes a request is the one it gets."),
    "notices_hangup": About("A caller that leaves ends the work at once; else it runs on to its end, and is counted."),
    "tariff": About("What it charges, for its own count of costs."),
}

PROMPT_CACHE = {
    "rules": About("anthropic: what is marked. breakpoints: OpenAI's since GPT-5.6. automatic: OpenAI's before."),
    "floor_tokens": About("Shorter beginnings are not kept.", minimum=0, maximum=1_000_000),
    "keeps_s": About("How long after its last use an entry lives, in seconds; one for an hour lives an hour.", more_than=0,
                     maximum=_DAY_S),
    "read_factor": About("What a token costs that is read, of plain input's price.", minimum=0, maximum=100),
    "write_factor": About("What a token costs that is written.", minimum=0, maximum=100),
    "machine_rpm": About("OpenAI's rules: of more prompts a minute with one key and beginning, the others go to a machine "
                         "that remembers nothing of them. Assumed.", minimum=1),
    "write_1h_factor": About("What a token costs that is written for an hour.", minimum=0, maximum=100),
}

MIXTURE = {
    "median_s": _wait("Median of the body, in seconds."),
    "sigma": _sigma("Of its logarithm; 0: always the median."),
    "tail_share": _share("Share of requests that the tail gets."),
    "tail_median_s": _wait("Median of the tail, in seconds."),
    "tail_sigma": _sigma("Of its logarithm."),
}

GAPS = {
    "median_s": _wait("Median for one token, in seconds.", 60),
    "sigma": _sigma("Of its logarithm."),
    "tokens_per_chunk": About("Tokens in one event.", minimum=1, maximum=10_000),
    "chunks_per_write": About("Events that leave together, as behind a proxy that buffers.", minimum=1, maximum=10_000),
}

LENGTHS = {
    "median": About("Median, in tokens.", minimum=1, maximum=1_000_000),
    "sigma": _sigma("Of its logarithm."),
    "most": About("No answer is longer.", minimum=1, maximum=1_000_000),
}

STALLS = {"share": _share("Of the chunks that one stands before."), "duration": About("How long they are.")}

SAG = {
    "share": _share("Of the answers."),
    "rate_factor": About("What is left of the pace.", more_than=0, maximum=1),
}

REGIME = {
    "mean_s": About("Mean length of a stay.", more_than=0, maximum=1e9),
    "ttft_factor": About("The first token takes so many times as long.", more_than=0, maximum=1000),
    "gap_factor": About("Every gap is so many times as long.", more_than=0, maximum=1000),
    "error_rate": _share("Share of requests answered as overloaded."),
}

REGIMES = {
    "normal": About("The good times."), "degraded": About("Slower times."), "brownout": About("Much slower, with errors."),
    "outage": About("Errors for everybody."),
}

COLD_START = {
    "after_idle_s": About("Silence after which it goes cold.", more_than=0, maximum=_DAY_S),
    "is_cold_at_first": About("Whether the very first request meets it cold."),
    "container_min_s": _wait("The least that a container takes to start."),
    "container_max_s": _wait("The most."),
    "load_min_s": _wait("The least that the model takes to load."),
    "load_max_s": _wait("The most."),
}


def _per_min(what: str) -> About:
    return About(f"{what} a minute. null: no limit.", minimum=1, maximum=1_000_000_000)


QUOTA = {
    "requests_per_min": _per_min("Requests"),
    "tokens_per_min": _per_min("Tokens, prompt and answer together,"),
    "input_tokens_per_min": _per_min("Tokens of prompts"),
    "output_tokens_per_min": _per_min("Tokens of answers"),
    "burst_s": About("A bucket holds what comes in so many seconds.", more_than=0, maximum=_HOUR_S),
    "assumed_output": About("Tokens charged in advance for an answer whose request sets no limit.",
                            minimum=0, maximum=1_000_000),
}

ENGINE_MODEL = {
    "batching": About("continuous: a request joins the batch when there is room. static: a batch ends with its longest."),
    "prefill_tokens_per_s": About("Prompt tokens read in a second, one prompt at a time.", minimum=1, maximum=1e9),
    "decode_step_s": About("A token of a sequence that runs alone.", minimum=1e-6, maximum=60),
    "decode_step_per_sequence_s": _wait("What each running sequence adds to it.", 60),
    "decode_share": About("Of its pace that decoding keeps while a prefill runs.", minimum=0.01, maximum=1),
    "kv_tokens": About("Tokens of prompts and answers that fit in memory.", minimum=1, maximum=1_000_000_000),
    "cache_tokens": About("Tokens of prompts kept for those that begin like them; continuous only. 0: none.", minimum=0,
                          maximum=1_000_000_000),
    "max_running": About("Most sequences in a batch.", minimum=1, maximum=100_000),
    "max_waiting": About("With so many waiting, more are answered 503. null: any number waits.", minimum=0),
    "batch_window_s": _wait("Static: how long the first of a batch waits for others.", 60),
}

FAULT = {
    "kind": About("What goes wrong."),
    "rate": About("Share of the requests.", more_than=0, maximum=1),
    "from_s": About("Not before this age of the provider.", minimum=0),
    "until_s": About("Not from this age on. null: for ever.", more_than=0),
    "n_at_most": About("So often and no more. null: always.", minimum=1),
    "api": About("Only these requests. null: all."),
    "status": About("Of an error.", minimum=400, maximum=599),
    "code": About("The error's machine-readable word. Unset: the usual one of its status."),
    "retry_after_s": About("When to come again. null: not said.", minimum=0, maximum=1e9),
    "seconds": _wait("Of a pause or a late head.", _DAY_S),
    "factor": About("Of a slow answer's gaps.", minimum=1, maximum=1000),
    "after_chunks": About("Chunks of content before a fault inside the body.", minimum=0),
    "form": About("How an error inside a stream is written; usual: as the dialect's own provider does."),
}

TARIFF = {
    name: About("US dollars for a million tokens. Assumed.", minimum=0, maximum=1_000_000)
    for name in ("input_usd_per_mtok", "output_usd_per_mtok")
}

DESCRIBED: Mapping[type[Any], Mapping[str, About]] = {
    ProviderConfig: PROVIDER, Mixture: MIXTURE, Gaps: GAPS, Lengths: LENGTHS, Stalls: STALLS, Sag: SAG, Regime: REGIME,
    Regimes: REGIMES, ColdStart: COLD_START, Quota: QUOTA, EngineModel: ENGINE_MODEL, FaultRule: FAULT, Tariff: TARIFF,
    PromptCacheModel: PROMPT_CACHE,
}
