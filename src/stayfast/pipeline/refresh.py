"""Calls that nobody waits for: an answer that was given though it was old is made again behind its reader's back.

Such a call goes the way of any other: it is let in as a batch job of the tenant whose request it was for, pays its quota,
has the route's time from its own start, and is stopped by the same limits. It is no request of a client, though: it is told
as `Renewed`, and stands in no figure of what clients waited for.
"""

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.errors import Shed, StayfastError
from stayfast.core.events import Renewed, Sink
from stayfast.core.types import ADMIT, CALL, CONTEXT, RELAY, ROUTE, AnswerSummary
from stayfast.pipeline.exchange import Exchange, ReleaseStack, Start
from stayfast.pipeline.stages.admit.admission import Admit
from stayfast.pipeline.stages.context import Context
from stayfast.pipeline.stages.relay import Relay
from stayfast.pipeline.stages.route import Router
from stayfast.pipeline.timing.timeouts import TimerWheel
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.admission.priority import Urgency


class BackgroundRefresh:
    """Makes such calls, with the stages of one gateway. Task-safe: a call's state is in its Exchange."""

    __slots__ = ("_admit", "_alarms", "_clock", "_context", "_relay", "_router", "_sink")

    def __init__(self, alarms: TimerWheel, admit: Admit, context: Context, router: Router, sink: Sink) -> None:
        self._alarms = alarms
        self._admit = admit
        self._context = context
        self._router = router
        self._sink = sink
        self._clock: Clock = alarms.clock
        self._relay = Relay(alarms.clock, self._done)

    async def ask(self, of: Exchange, start: Start, role: str) -> None:
        """Make the call of this request once more, by `start`, and read all of it. What goes wrong is told, not raised.
        `role`: what its attempts are made for.
        """
        arrival = replace(of.arrival, accepted_at=self._clock.now(), total_s=None, silence_s=None, urgency=Urgency.BATCH,
                          role=role)
        ex = Exchange(of.request, arrival, of.terms, self._alarms)
        held = ReleaseStack()
        try:
            ex.enter(ADMIT)
            held.add(await self._admit.admit(ex))
            ex.enter(CONTEXT)
            prompt = await self._context.fit(ex)
            ex.enter(ROUTE)
            plan = self._router.plan(ex, prompt)
            ex.enter(CALL)
            started = await start(ex, plan)
            held.add(started.source.abandon)
            ex.enter(RELAY)
            reply = self._relay.open(ex, started, held.hand_over())
        except StayfastError as why:
            held.release()
            self._done(ex, why)
            return
        except BaseException:
            held.release()
            ex.watch.stop()
            raise
        try:
            while await reply.next() is not None:
                pass
        except StayfastError:
            return  # told as any other end
        finally:
            reply.close()

    def _done(self, ex: Exchange, why: BaseException | None, sight: AnswerSummary | None = None,
              cadence: TokenTimings | None = None,
              n_chunks: int = 0) -> None:
        ex.watch.stop()
        result = "refreshed" if why is None else "shed" if isinstance(why, Shed) else "failed"
        self._sink.emit(Renewed(ex.terms.route or "", result, self._clock.now() - ex.arrival.accepted_at))
