"""The places that requests take while they run, and what each tenant has used."""
