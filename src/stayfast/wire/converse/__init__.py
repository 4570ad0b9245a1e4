"""Amazon Bedrock's Converse and ConverseStream; of upstreams only."""
