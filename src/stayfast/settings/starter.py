"""The file that `stayfast init` writes. It is valid, and so are its examples once their `#` is removed."""

STARTER = """\
# yaml-language-server: $schema=stayfast.schema.json
# (for editors; `stayfast schema > stayfast.schema.json` writes that file)
# Two replicas of your own, and a hosted model for when both fail or take too long.
# Check: `stayfast check`. Run: `stayfast serve`. All settings: docs/reference/settings.md.
# Values from the environment: ${NAME} or ${NAME:-default}.

upstreams:
  vllm-0: {kind: vllm, base_url: "http://127.0.0.1:8000"} # also: sglang, llamacpp, ollama, ... (docs/providers.md)
  vllm-1: {kind: vllm, base_url: "http://127.0.0.1:8001"}
  openai: {provider: openai, models: {assistant: gpt-4o-mini}} # its key is in OPENAI_API_KEY
  #claude: {provider: anthropic, models: {assistant: claude-sonnet-4-5}} # ANTHROPIC_API_KEY
  #azure: {provider: azure, resource: my-resource, models: {assistant: my-deployment}} # AZURE_OPENAI_API_KEY

routes: # clients send the name of a route as `model`
  assistant:
    upstreams: [vllm-0, vllm-1] # the less busy one answers, the other one if it fails or is slow
    model: meta-llama/Llama-3.1-8B-Instruct # its name at the replicas
    fallback: [openai]
    #preset: chat # time limits and a promise for this kind of work (docs/promises.md)
    #cache: {mode: exact} # equal requests with `temperature: 0` or a seed (docs/concepts/cache.md)
  #"*": [openai] # any other name, forwarded unchanged

#server:
#  host: 0.0.0.0 # for other machines; needs keys
#  keys: # one per client; `stayfast key NAME` makes one
#    my-app: sha256:0000000000000000000000000000000000000000000000000000000000000000
"""
