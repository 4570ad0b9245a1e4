"""The file that `stayfast init` writes: valid as it stands, with examples that become valid when their `#` goes."""

_TEXT = """\
# yaml-language-server: $schema=stayfast.schema.json
# (for editors; `stayfast schema > stayfast.schema.json` writes that file)
# Settings of Stayfast. Check them with `stayfast check`, try them with `stayfast serve`.
# Every setting: docs/reference/settings.md. Values may be taken from the environment: ${{NAME}} or ${{NAME:-default}}.

server:
  host: 127.0.0.1 # 0.0.0.0 to be reached from other machines, which needs keys
  port: 8090
  #keys: # one for each client; `stayfast key NAME` makes one
  #  my-app: sha256:0000000000000000000000000000000000000000000000000000000000000000

# Who can answer.
upstreams:
  # A provider played from a script, to try things out without a key or a network.
  simulated:
    kind: simulated
  # A small model that the gateway runs by itself; `model` may be the path of any GGUF file.
  {embedded}tiny:
  {embedded}  kind: embedded
  #openai:
  #  kind: openai
  #  key: ${{OPENAI_API_KEY}}
  #anthropic:
  #  kind: anthropic
  #  key: ${{ANTHROPIC_API_KEY}}
  # vLLM, SGLang, llama.cpp, Ollama: anything that speaks OpenAI's protocol.
  #my-vllm:
  #  kind: openai
  #  base_url: http://127.0.0.1:8000/v1

# What clients may send as `model`, and who answers then: the less busy of two drawn at random; another when one fails.
# With `pick: order` the first of the list that is well, and the next ones only when it fails.
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
  #  # The same question, word for word, is answered again without a call: where requests say `temperature: 0`, or a seed.
  #  # Look at `x-cache` and `stayfast cache stats`; what is safe to turn on next: docs/concepts/cache.md.
  #  cache:
  #    mode: exact
  #    ttl_s: 86400
  #llama:
  #  upstreams: [my-vllm]
  #  model: meta-llama/Llama-3.1-8B-Instruct # the name there
  #"*": [openai, anthropic] # any other name, passed on as it is

# What routes have where they say nothing else.
defaults:
  timeouts:
    total_s: 600 # from accept to the last byte
    first_token_s: 120
    idle_s: 60
    connect_s: 5
"""


def starter(*, is_embedded: bool) -> str:
    """The text of the file; without the embedded engine its lines are examples too."""
    return _TEXT.format(embedded="" if is_embedded else "#")
