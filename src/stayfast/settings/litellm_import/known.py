"""The settings of LiteLLM that the import knows, and what becomes of each: the table of docs/coming-from-litellm.md.

A row decides the list of a setting; the modules that convert values may only move one to a stronger list, for example if it
is no number. `sample`: a value for which the written file differs from one without the setting; empty if nothing is written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from stayfast.settings.litellm_import.ledger import ImportVerdict, SourceNode
from stayfast.settings.litellm_import.scalars import is_off, switch_of

_T, _D, _N = ImportVerdict.TAKEN, ImportVerdict.DIFFERENT, ImportVerdict.NOT_TAKEN
TOP, ENTRY, PARAMS, INFO = "", "model_list[]", "model_list[].litellm_params", "model_list[].model_info"
CALLS, CACHE, GENERAL = "router_settings, litellm_settings", "litellm_settings.cache_params", "general_settings"


@dataclass(frozen=True, slots=True)
class KnownSetting:
    """One row: settings of one section that have the same fate."""

    section: str
    names: str
    verdict: ImportVerdict
    becomes: str
    why: str = ""
    sample: str = ""
    is_read: bool = False  # its values are marked one by one


_BODY = ("temperature top_p max_tokens max_completion_tokens seed stop n presence_penalty frequency_penalty logit_bias "
         "response_format reasoning_effort thinking extra_body user logprobs top_logprobs tools tool_choice "
         "parallel_tool_calls verbosity dimensions encoding_format input_type top_k service_tier metadata")
_SINKS = "Stayfast writes JSON log lines, OpenTelemetry spans and Prometheus metrics; this sink is not among them"
_NO_DATABASE = "Stayfast reads no database of LiteLLM; its own store has keys and spend: docs/keys.md"
_PLATFORM = "not part of Stayfast, which routes model calls"

ROWS: Final = (
    KnownSetting(TOP, "include", _T, "the named files are read as part of this one"),
    KnownSetting(TOP, "environment_variables", _D, "the environment of `stayfast serve`",
                 "a settings file sets no variables: set it where the gateway is started"),
    KnownSetting(TOP, "credential_list", _T, "`key` and address of the upstreams that name it", is_read=True),
    KnownSetting(TOP, "guardrails policies policy_attachments prompts", _N, "",
                 "Stayfast has no guardrails; a Python hook can check requests and answers"),
    KnownSetting(TOP, "mcp_servers mcp_tools search_tools sandbox_tools vector_store_registry agent_list a2a_agents", _N, "",
                 _PLATFORM),
    KnownSetting(TOP, "finetune_settings files_settings assistant_settings batch_settings", _N, "",
                 "files and fine-tuning can be passed through: `passthrough: {paths: ...}` (docs/pass-through.md)"),
    KnownSetting(ENTRY, "model_name", _T, "the name of a route; entries with one name are its upstreams"),

    KnownSetting(PARAMS, "model custom_llm_provider", _T, "an upstream of this provider, and the route's `model`"),
    KnownSetting(PARAMS, "api_base base_url", _T, "`base_url`, or `resource` of Azure", sample="http://10.0.0.9:8000/v1"),
    KnownSetting(PARAMS, "api_key", _T, "`key`", sample="os.environ/OTHER_KEY"),
    KnownSetting(PARAMS, "litellm_credential_name", _T, "the values of that credential"),
    KnownSetting(PARAMS, "api_version", _D, "nothing", "Azure's v1 address takes no api-version"),
    KnownSetting(PARAMS, "organization", _T, "`headers: {openai-organization: ...}`; a list: one upstream each",
                 sample="org-1"),
    KnownSetting(PARAMS, "extra_headers headers", _T, "`headers`", sample="{x-title: t}"),
    KnownSetting(PARAMS, "ssl_verify", _T, "`verify`", sample="false"),
    KnownSetting(PARAMS, "region_name aws_region_name vertex_location vertex_ai_location", _T, "`region`"),
    KnownSetting(PARAMS, "vertex_project vertex_ai_project", _T, "`project`"),
    KnownSetting(PARAMS, "aws_access_key_id aws_secret_access_key aws_session_token aws_profile_name aws_role_name "
                 "aws_external_id", _T, "`credentials: {kind: aws, ...}`"),
    KnownSetting(PARAMS, "aws_session_name aws_web_identity_token aws_sts_endpoint", _N, "",
                 "set it in AWS's own configuration: a profile, or AWS_WEB_IDENTITY_TOKEN_FILE"),
    KnownSetting(PARAMS, "vertex_credentials vertex_ai_credentials", _D, "`credentials: {kind: google, file: ...}`",
                 "the path of a file, not its JSON"),
    KnownSetting(PARAMS, "tenant_id client_id client_secret", _T, "`credentials: {kind: entra, ...}`"),
    KnownSetting(PARAMS, "azure_ad_token", _N, "", "a token expires: use `credentials: {kind: entra}`"),
    KnownSetting(PARAMS, "rpm", _D, "`rate: {requests_per_minute: ...}` of the upstream",
                 "a limit that is kept; LiteLLM's simple-shuffle reads it as a weight", "60"),
    KnownSetting(PARAMS, "tpm", _D, "`rate: {tokens_per_minute: ...}` of the upstream",
                 "a limit that is kept; LiteLLM's simple-shuffle reads it as a weight", "60000"),
    KnownSetting(PARAMS, "rpd", _D, "`rate: {requests_per_day: ...}` of the upstream", "refilled evenly", "900"),
    KnownSetting(PARAMS, "tpd", _D, "`rate: {tokens_per_day: ...}` of the upstream", "refilled evenly", "9000"),
    KnownSetting(PARAMS, "max_parallel_requests", _D, "`limit: {mode: fixed, max: ...}` of the upstream",
                 "further requests wait for a place, or go to another upstream", "4"),
    KnownSetting(PARAMS, "weight", _T, "`weights` of the route", sample="3"),
    KnownSetting(PARAMS, "order", _D, "`pick: order`; equal orders: tiers of `fallback`",
                 "the next one is also tried for a request that the first one failed", "2"),
    KnownSetting(PARAMS, "timeout", _D, "`timeouts: {total_s: ...}` of the route",
                 "covers the whole request with its retries; of several entries the longest applies", "30"),
    KnownSetting(PARAMS, "stream_timeout", _D, "`timeouts: {first_token_s: ...}` of the route",
                 "from an attempt's start to its first token, of streams and whole answers", "5"),
    KnownSetting(PARAMS, "num_retries max_retries", _D, "`retry: {max_attempts: ...}` of the route, the first included",
                 "a budget bounds all extra attempts", "4"),
    KnownSetting(PARAMS, "cooldown_time", _D, "`breaker: {open_s: ...}` of the upstream",
                 "then probes decide, and the load grows slowly", "20"),
    KnownSetting(PARAMS, "allowed_fails", _D, "`breaker: {consecutive_failures: ...}` of the upstream",
                 "failures in a row, not in a minute", "6"),
    KnownSetting(PARAMS, "cache_control_injection_points", _D, "`prefix: {mode: auto}` of the route",
                 "Stayfast finds the static part of prompts itself", "[{location: message, role: system}]"),
    KnownSetting(PARAMS, "tags tag_regex", _N, "", "Stayfast routes by model name only: give each group a name of its own"),
    KnownSetting(PARAMS, _BODY, _N, "", "a route sets no parameters of requests: clients send them"),
    KnownSetting(PARAMS, "max_budget budget_duration", _N, "",
                 "budgets are per client: `tenants: {NAME: {quota: {cost_per_day: ...}}}`"),
    KnownSetting(PARAMS, "itpm otpm", _N, "", "limits of an upstream count all tokens: use `rate`"),
    KnownSetting(PARAMS, "use_in_pass_through", _N, "", "write `passthrough: {upstream: NAME}`"),
    KnownSetting(PARAMS, "mock_response", _N, "", "for tests write an upstream of kind simulated"),
    KnownSetting(PARAMS, "drop_params additional_drop_params allowed_openai_params", _N, "",
                 "requests are forwarded, or translated, as a whole"),

    KnownSetting(INFO, "mode", _T, "nothing: a route serves every API that its upstreams have; of images, audio and others: "
                                   "`passthrough`"),
    KnownSetting(INFO, "id", _D, "the upstream's name", "upstreams are named by provider"),
    KnownSetting(INFO, "base_model", _D, "`prices: {MODEL: {table: ROW}}`", "only a row of the table of list prices",
                 "azure/o3"),
    KnownSetting(INFO, "max_input_tokens", _D, "`max_input_tokens` of the route",
                 "only together with enable_pre_call_checks or context_window_fallbacks"),
    KnownSetting(INFO, "max_tokens max_output_tokens", _D, "nothing", "the provider limits its answers itself"),
    KnownSetting(INFO, "supported_environments access_groups team_id", _N, "",
                 "every key may use every route, unless its scopes say otherwise"),
    KnownSetting(INFO, "supports_vision supports_function_calling supports_parallel_function_calling supports_reasoning "
                 "supports_prompt_caching supports_response_schema supports_pdf_input supports_audio_input", _T,
                 "nothing: requests are forwarded whole, and nothing depends on it"),

    KnownSetting(CALLS, "num_retries", _D, "`defaults: {retry: {max_attempts: ...}}`, the first included",
                 "a budget bounds all extra attempts at a tenth of the traffic", "1"),
    KnownSetting(CALLS, "retry_after", _D, "`defaults: {retry: {backoff_base_s: ...}}`",
                 "the longest first wait, with jitter; an upstream's Retry-After is respected", "1"),
    KnownSetting(CALLS, "timeout request_timeout", _D, "`defaults: {timeouts: {total_s: ...}}`",
                 "one deadline for the whole request with its retries and fallbacks", "45"),
    KnownSetting(CALLS, "stream_timeout", _D, "`defaults: {timeouts: {first_token_s: ...}}`",
                 "from an attempt's start to its first token", "7"),
    KnownSetting(CALLS, "allowed_fails", _D, "`defaults: {breaker: {consecutive_failures: ...}}`",
                 "failures in a row, not in a minute; half of the last 20 calls opens it, too", "2"),
    KnownSetting(CALLS, "cooldown_time", _D, "`defaults: {breaker: {open_s: ...}}`",
                 "then probes decide, and the load grows slowly", "15"),
    KnownSetting(CALLS, "disable_cooldowns", _T, "`defaults: {breaker: {enabled: false}}`", sample="true"),
    KnownSetting(CALLS, "retry_policy", _D, "`defaults: {retry: {max_attempts: ...}}` by its largest number",
                 "which failures are retried is fixed: connections, time-outs, 429, 5xx; never a bad request or key",
                 "{TimeoutErrorRetries: 1}"),
    KnownSetting(CALLS, "model_group_retry_policy", _D, "`retry: {max_attempts: ...}` of the route",
                 "which failures are retried is fixed", "{m: {TimeoutErrorRetries: 1}}"),
    KnownSetting(CALLS, "allowed_fails_policy", _N, "", "which failures open a breaker is fixed: connections, 5xx"),
    KnownSetting(CALLS, "routing_strategy", _D, "`pick: balance`, the default",
                 "one picker: the less busy of two random upstreams, by live times and failures"),
    KnownSetting(CALLS, "routing_strategy_args routing_groups", _N, "", "the picker has no such options"),
    KnownSetting(CALLS, "fallbacks default_fallbacks", _T, "`fallback` of the routes", sample="[{m: [other]}]"),
    KnownSetting(CALLS, "context_window_fallbacks", _D, "`oversize_route` and `max_input_tokens` of the route",
                 "decided by the prompt's length before the call, so it needs model_info.max_input_tokens"),
    KnownSetting(CALLS, "content_policy_fallbacks", _N, "", "a refusal of the provider is an answer and goes to the client"),
    KnownSetting(CALLS, "model_group_alias", _T, "a route of that name with the same upstreams", sample="{alias: m}"),
    KnownSetting(CALLS, "enable_pre_call_checks", _D, "`max_input_tokens` of the routes",
                 "where model_info.max_input_tokens is known; longer prompts get 413"),
    KnownSetting(CALLS, "optional_pre_call_checks", _D, "`affinity` of the routes",
                 "prompt_caching: mode prefix; session_affinity and its relatives: mode sessions", "[prompt_caching]"),
    KnownSetting(CALLS, "redis_url redis_host redis_port redis_password redis_username redis_db redis_ssl", _D,
                 "`fleet: {url: ...}`", "gateways share limits and quotas through it; without it each continues alone",
                 "redis://127.0.0.1:6379"),
    KnownSetting(CALLS, "cache cache_responses", _D, "`cache: {mode: exact}` of each route",
                 "only requests with temperature 0 to 0.3 or a seed, unless max_temperature is raised", "true"),
    KnownSetting(CALLS, "set_verbose debug_level", _T, "`log: {level: debug}`", sample="true"),
    KnownSetting(CALLS, "json_logs", _T, "`log: {format: json}`", sample="true"),
    KnownSetting(CALLS, "callbacks success_callback failure_callback service_callback", _D,
                 "prometheus: `metrics`; otel: `tracing`", _SINKS, "[otel]"),
    KnownSetting(CALLS, "turn_off_message_logging redact_user_api_key_info redact_messages_in_exceptions", _T,
                 "nothing: prompts and keys are never logged"),
    KnownSetting(CALLS, "require_auth_for_metrics_endpoint", _T, "`server: {metrics_access: ...}`", sample="false"),
    KnownSetting(CALLS, "drop_params modify_params", _N, "", "requests are forwarded, or translated, as a whole"),
    KnownSetting(CALLS, "enable_tag_filtering", _N, "", "Stayfast routes by model name only"),
    KnownSetting(CALLS, "ssl_verify", _T, "`verify` of all upstreams", sample="false"),
    KnownSetting(CALLS, "max_budget budget_duration default_team_settings default_internal_user_params", _N, "",
                 "budgets are per client: `tenants: {NAME: {quota: {cost_per_day: ...}}}`"),
    KnownSetting(CALLS, "guardrails mcp_aliases mcp_semantic_tool_filter websearch_interception_params "
                 "code_interpreter_interception_params", _N, "", _PLATFORM),

    KnownSetting(CACHE, "type", _D, "redis: `stores`; local: memory of each worker; disk: SQLite",
                 "semantic types become exact: their fixed threshold is no bound on wrong answers (docs/concepts/"
                 "semantic-cache.md)", "redis"),
    KnownSetting(CACHE, "host port password username url db ssl", _T, "`stores: {redis: {url: ...}}`"),
    KnownSetting(CACHE, "namespace", _T, "`stores: {redis: {prefix: ...}}`"),
    KnownSetting(CACHE, "ttl default_in_redis_ttl", _T, "`cache: {ttl_s: ...}`", sample="60"),
    KnownSetting(CACHE, "default_in_memory_ttl", _N, "", "answers in memory have the same lifetime as in the store"),
    KnownSetting(CACHE, "mode", _D, "default_off: no cache", "no request can enable a cache that its route has not",
                 "default_off"),
    KnownSetting(CACHE, "supported_call_types", _D, "nothing", "the cache covers every API of the route"),
    KnownSetting(CACHE, "similarity_threshold redis_semantic_cache_embedding_model redis_semantic_cache_index_name "
                 "qdrant_api_base qdrant_api_key qdrant_collection_name qdrant_semantic_cache_embedding_model", _N, "",
                 "semantic caches learn their threshold from your traffic: docs/concepts/semantic-cache.md"),
    KnownSetting(CACHE, "redis_startup_nodes sentinel_nodes service_name gcp_service_account", _N, "",
                 "one Redis address: of a cluster's or sentinel's proxy"),
    KnownSetting(CACHE, "s3_bucket_name s3_region_name s3_aws_access_key_id s3_aws_secret_access_key s3_endpoint_url "
                 "s3_path gcs_bucket_name gcs_path azure_account_url azure_blob_container", _N, "", "no object storage"),
    KnownSetting(CACHE, "disk_cache_dir redis_flush_size", _N, "", "the store has no such option"),

    KnownSetting(GENERAL, "master_key", _D, "`server: {keys: {master: ...}, admins: [master]}`",
                 "only the digest is stored", "os.environ/LITELLM_MASTER_KEY"),
    KnownSetting(GENERAL, "coordination_redis", _D, "`fleet: {url: ...}`",
                 "gateways share limits, breakers and quotas through it", "{host: r.local, port: 6379}"),
    KnownSetting(GENERAL, "global_max_parallel_requests max_in_flight_requests_per_worker", _D,
                 "`admission: {max_in_flight: ...}`", "of all workers together; others queue for a short time", "40"),
    KnownSetting(GENERAL, "max_queued_requests_per_worker", _D, "`admission: {max_queue: ...}`", "by priority", "9"),
    KnownSetting(GENERAL, "admission_queue_timeout_seconds", _T, "`admission: {max_wait_s: ...}`", sample="1.5"),
    KnownSetting(GENERAL, "max_request_size_mb", _T, "`server: {max_body_bytes: ...}`", sample="8"),
    KnownSetting(GENERAL, "otel", _T, "`tracing: {exporter: otlp}`", sample="true"),
    KnownSetting(GENERAL, "background_health_checks health_check_interval health_check_concurrency "
                 "health_check_skip_disabled_background_models", _D, "nothing",
                 "live traffic and probes of open breakers show what is healthy; no paid calls in the background"),
    KnownSetting(GENERAL, "cancel_on_disconnect", _T, "nothing: a call ends when its client leaves"),
    KnownSetting(GENERAL, "database_url database_connection_pool_limit database_connection_timeout "
                 "disable_prisma_schema_update use_redis_transaction_buffer proxy_batch_write_at disable_spend_logs "
                 "store_prompts_in_spend_logs maximum_spend_logs_retention_period", _N, "", _NO_DATABASE),
    KnownSetting(GENERAL, "store_model_in_db supported_db_objects", _N, "",
                 "models in LiteLLM's database override this file: add them to the file before the import"),
    KnownSetting(GENERAL, "max_parallel_requests", _N, "",
                 "clients are limited by requests, tokens and cost: `tenants: {NAME: {quota: ...}}`"),
    KnownSetting(GENERAL, "alerting alerting_threshold alert_types alert_to_webhook_url alerting_args", _N, "",
                 "`stayfast alerts` writes Prometheus rules"),
    KnownSetting(GENERAL, "pass_through_endpoints pass_through_request_timeout", _N, "",
                 "name its target as an upstream, and `passthrough: {paths: {/v1/PATH: NAME}}` for a path below /v1"),
    KnownSetting(GENERAL, "custom_auth allowed_routes public_routes enable_jwt_auth user_header_name ui_access_mode "
                 "key_management_system custom_team_metadata_validate reject_clientside_metadata_tags", _N, "",
                 "clients have keys with scopes: docs/keys.md"),
    KnownSetting(GENERAL, "completion_model infer_model_from_keys", _N, "", "a request names its route"),
    KnownSetting(GENERAL, "forward_client_headers_to_llm_api", _N, "", "headers of clients are not forwarded"),
)
PRICE_NAMES: Final[Mapping[str, str]] = MappingProxyType({
    "input_cost_per_token": "input_per_mtok", "output_cost_per_token": "output_per_mtok",
    "cache_read_input_token_cost": "cached_read_per_mtok", "cache_creation_input_token_cost": "cache_write_per_mtok",
    "cache_creation_input_token_cost_above_1hr": "cache_write_1h_per_mtok",
})
_PRICES = tuple(KnownSetting(section, " ".join(PRICE_NAMES), _T, "`prices` of the upstream, per million tokens",
                             sample="0.000001") for section in (PARAMS, INFO))
TABLE: Final = (*ROWS, *_PRICES)
_BY_SECTION: Final[Mapping[str, Mapping[str, KnownSetting]]] = MappingProxyType({
    section: {name: row for row in TABLE if row.section == section for name in row.names.split()}
    for section in (TOP, ENTRY, PARAMS, INFO, CALLS, CACHE, GENERAL)})


def count_known() -> int:
    """How many settings the table has."""
    return sum(len(row.names.split()) for row in TABLE)


def find_known(section: str, name: str) -> KnownSetting | None:
    return _BY_SECTION[section].get(name)


def mark_known(node: SourceNode, section: str) -> None:
    """Mark the settings of a section by their rows. What has no row stays unread."""
    for name, value in node.entries().items():
        row = find_known(section, name)
        if row is None or row.is_read:
            continue
        is_unset = value.is_null or (switch_of(value) is False and row.sample != "false")
        if is_unset or (row.verdict is _N and is_off(value)):
            value.take("nothing: it is off")
        elif row.verdict is _T:
            value.take(row.becomes)
        elif row.verdict is _D:
            value.differ(row.becomes, row.why)
        else:
            value.refuse(row.why)


def table_lines() -> Iterator[str]:
    """The table of the page, in Markdown."""
    words = {_T: "taken", _D: "differently", _N: "not taken"}
    for section in (TOP, ENTRY, PARAMS, INFO, CALLS, CACHE, GENERAL):
        yield from (f"**{section or 'top level'}**", "", "| LiteLLM | | Stayfast |", "|---|---|---|")
        for row in TABLE:
            if row.section == section:
                text = "; ".join(part for part in (row.becomes, row.why) if part)
                yield f"| {', '.join(f'`{name}`' for name in row.names.split())} | {words[row.verdict]} | {text} |"
        yield ""
