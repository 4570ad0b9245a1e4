"""From a plan to the first token: attempts, retries, hedges, places at upstreams, failover."""
