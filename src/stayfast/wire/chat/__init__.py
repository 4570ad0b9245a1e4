"""OpenAI chat completions, and the older completions that share its words."""
