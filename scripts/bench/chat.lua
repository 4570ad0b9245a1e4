-- wrk script: one OpenAI chat request, repeated. STREAM=1 in the environment requests a stream.
local stream = os.getenv("STREAM") == "1" and ',"stream":true' or ''
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"model":"gpt-4o-mini","messages":[{"role":"system","content":"You are a helpful assistant."},'
  .. '{"role":"user","content":"Say something about latency, please, and keep it short."}],'
  .. '"max_tokens":64,"temperature":0.2' .. stream .. '}'
