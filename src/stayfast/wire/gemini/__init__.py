"""Google's generateContent, of upstreams only."""
