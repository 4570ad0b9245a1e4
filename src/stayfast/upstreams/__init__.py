"""F3: doors to whatever can answer, all behind the protocol in `upstreams.base`."""
