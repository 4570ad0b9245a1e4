"""The file that `stayfast init` writes. It is valid, and so are its examples once their `#` is removed."""

_TEXT = """\
# yaml-language-server: $schema=stayfast.schema.json
# (for editors; `stayfast schema > stayfast.schema.json` writes that file)
# Settings of Stayfast. Check: `stayfast check`. Run: `stayfast serve`. All settings: docs/reference/settings.md.
# Values from the environment: ${{NAME}} or ${{NAME:-default}}.

server:
  host: 127.0.0.1 # 0.0.0.0 for other machines; needs keys
  port: 8090
  #keys: # one per client; `stayfast key NAME` makes one
  #  my-app: sha256:0000000000000000000000000000000000000000000000000000000000000000

# Providers and engines.
upstreams:
  # A simulated provider, to try things out without a key or a network.
  simulated:
    kind: simulated
  # A small model that the gateway runs itself; `model` may be the path of any GGUF file.
  {embedded}tiny:
  {embedded}  kind: embedded
  #openai:
  #  kind: openai
  #  key: ${{OPENAI_API_KEY}}
  #anthropic:
  #  kind: anthropic
  #  key: ${{ANTHROPIC_API_KEY}}
  # vLLM, SGLang, llama.cpp, Ollama: anything with OpenAI's protocol.
  #my-vllm:
  #  kind: openai
  #  base_url: http://127.0.0.1:8000/v1

# The `model` names of clients, and their upstreams: the less busy of two random ones answers, another one if it fails.
# With `pick: order` the first healthy one of the list answers.
routes:
  simulated: [simulated]
  {embedded}stayfast-tiny: [tiny]
  #gpt-4o-mini:
  #  upstreams: [openai]
  #  timeouts:
  #    total_s: 60
  #    first_token_s: 10
  #  retry:
  #    max_attempts: 2
  #  # Equal requests with `temperature: 0` or a seed are answered from the cache.
  #  # See `x-cache` and `stayfast cache stats`; more: docs/concepts/cache.md.
  #  cache:
  #    mode: exact
  #    ttl_s: 86400
  #llama:
  #  upstreams: [my-vllm]
  #  model: meta-llama/Llama-3.1-8B-Instruct # the name there
  #"*": [openai, anthropic] # any other name, forwarded unchanged

# Values for routes that do not set their own.
defaults:
  timeouts:
    total_s: 600 # from accept to the last byte
    first_token_s: 120
    idle_s: 60
    connect_s: 5
"""


def starter_file(*, is_embedded: bool) -> str:
    """The text of the file. Without the embedded engine, its lines are commented out."""
    return _TEXT.format(embedded="" if is_embedded else "#")
