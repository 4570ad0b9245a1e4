"""F5, public: virtual time, scripted upstreams and recording sinks for tests of anything built on Stayfast.

    from stayfast.testing import Say, Scripted, SimLoop, Wait, run

    def test_first_word_at_250_ms():
        async def main(loop: SimLoop) -> float: ...
        assert run(main) == 0.25      # virtual seconds, exact, in no real time
"""

from stayfast.testing.recording import RecordingSink
from stayfast.testing.simloop import Deadlocked, SimLoop, run
from stayfast.testing.threads import VirtualThreads
from stayfast.upstreams.scripted import Cut, Fail, Raw, Say, Script, Scripted, Wait

__all__ = ["Cut", "Deadlocked", "Fail", "Raw", "RecordingSink", "Say", "Script", "Scripted", "SimLoop", "VirtualThreads",
           "Wait", "run"]
