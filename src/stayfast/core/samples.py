"""Facts of sampled requests (`pipeline.request_sampler`): sizes and shares, never text."""

import msgspec


class PromptSampled(msgspec.Struct, frozen=True, gc=False):
    """The sizes of one request's prompt and what it cost in time: a sample, at most two a second. Sizes in estimated tokens;
    no text. `digest`s cannot be turned back.
    """

    route: str
    at: float
    input_tokens: float
    system_tokens: float = 0.0
    tool_tokens: float = 0.0
    history_tokens: float = 0.0
    retrieved_tokens: float = 0.0  # long last user messages and results of tools
    n_messages: int = 0
    max_tokens: int | None = None
    bias_digest: int | None = None  # of the logit biases; None: there are none
    n_images: int = 0
    client_timeout_s: float | None = None
    shared_prefix_ratio: float | None = None  # with the previous sample of the route; None: there is none
    output_tokens: int | None = None
    ttft_s: float | None = None  # of a streamed answer that the upstream made
    e2e_s: float | None = None  # of a whole answer that the upstream made
    upstream: str = ""  # that answered
    n_running: int | None = None  # calls at the upstream when its attempt started
    has_parts: bool = True  # False: too large to measure more than `input_tokens`
    is_repeated: bool = False  # equal to an earlier sample of the route, with a temperature or seed that a cache accepts


class QuotaReported(msgspec.Struct, frozen=True, gc=False):
    """What an upstream's rate-limit headers report, at most once a second. `left`: share of each limit, 0 to 1."""

    upstream: str
    at: float
    left: dict[str, float]
