"""The load generator of `stayfast bench`: schedules, runner, HTTP client, statistics."""
