"""`stayfast sim`: the simulated provider over HTTP. What it says and when is `lab.simulated`; this is its socket."""
