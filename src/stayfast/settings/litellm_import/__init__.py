"""The import of LiteLLM configurations."""
