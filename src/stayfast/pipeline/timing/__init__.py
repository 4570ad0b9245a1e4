"""The clocks of a request: its ledger, its time-outs, the wheel of timers, the times of its tokens."""
