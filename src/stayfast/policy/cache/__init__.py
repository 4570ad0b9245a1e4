"""Which answers may be served again, to which questions, and which are evicted."""
