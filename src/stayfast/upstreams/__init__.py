"""F3: upstreams, behind the protocol in `upstreams.base`."""
