"""OpenAI chat completions, and the older completions, which share its format."""
