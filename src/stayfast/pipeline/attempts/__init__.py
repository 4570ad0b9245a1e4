"""One call to one upstream, what a route knows of second calls, and the probe that is one."""
