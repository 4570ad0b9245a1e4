"""`stayfast sim`: the simulated provider over HTTP. What it says and when is `upstreams.simulated`; this is its socket."""
