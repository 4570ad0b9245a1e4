"""`stayfast sim`: simulated providers (`lab.simulated`) over HTTP."""
