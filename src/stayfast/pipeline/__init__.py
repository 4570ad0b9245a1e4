"""F4: the story of a request. Read `pipeline.gateway` first."""
