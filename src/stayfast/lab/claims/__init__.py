"""The claims, one file each: parameters and figures."""
