"""Where requests queue, first tokens are foreseen: learned from what was answered, told as a metric."""

from random import Random

import pytest

from stayfast.compose.routes import prediction_error_rows
from stayfast.compose.system import Observers, System, build
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.metrics.definitions import PREDICTOR_ERROR
from stayfast.pipeline.admission.controller import AdmissionRequest
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.settings import SettingsText, load_settings
from stayfast.testing import SimLoop, run
from tests.flow.rig import chat, read

TEXT = """
upstreams:
  a: {kind: simulated, ttft: {median_s: 0.4}, probe: false}
  b: {kind: simulated, ttft: {median_s: 0.2}, probe: false}
routes: {m: {upstreams: [a], hedge: {mode: "off"}}, both: {upstreams: [a, b], hedge: {mode: "off"}}}
log: {level: error, requests: false}
"""


def system(text: str, loop: SimLoop, old: System | None = None) -> System:
    """Built."""
    settings = load_settings(SettingsText("test", text), {}, kinds=KINDS)
    return build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)


async def request(it: System, model: str, n: int, loop: SimLoop, *, stream: bool = True) -> None:
    """One after the other."""
    for _ in range(n):
        reply = await it.gateway.serve(chat(model=model, stream=stream), Arrival("req_1", loop.now()))
        await read(reply)
        reply.close()


def test_ttft_prediction_is_learned_by_upstream() -> None:
    """A route is as quick as its quickest upstream; an unknown model has no prediction."""
    async def main(loop: SimLoop) -> None:
        it = system(TEXT + "admission: {max_in_flight: 4}", loop)
        admit = it.gateway.admit
        assert isinstance(admit, Admission)
        predict = admit.places.outlook.predict_ttft_s
        assert predict is not None

        def foreseen(model: str) -> float | None:
            return predict(AdmissionRequest(0, 0, 20, 20, 20, 1e9, 1e9, model))

        assert foreseen("m") is None
        await request(it, "m", 40, loop)
        assert foreseen("m") == pytest.approx(0.4, rel=0.1)
        await request(it, "both", 60, loop)
        assert foreseen("both") == pytest.approx(0.2, rel=0.1)
        assert foreseen("nobody's") is None
        rows = prediction_error_rows(it.registry)[PREDICTOR_ERROR.name]
        assert [labels for labels, _ in rows] == [("a",), ("b",)]
        assert all(ratio < 0.1 for _, ratio in rows)

    run(main)


def test_ttft_prediction_is_learned_by_model() -> None:
    """A reasoning model at the same upstream does not make a quick one look slow."""
    async def main(loop: SimLoop) -> None:
        upstream = "{kind: simulated, ttft: {median_s: 0.3}, by_model: {reasoning: {ttft: {median_s: 20}}}, probe: false}"
        it = system(f"upstreams: {{a: {upstream}}}\nroutes: {{'*': [a]}}\nadmission: {{max_in_flight: 4}}", loop)
        admit = it.gateway.admit
        assert isinstance(admit, Admission)
        predict = admit.places.outlook.predict_ttft_s
        assert predict is not None
        for _ in range(40):
            await request(it, "quick", 1, loop)
            await request(it, "reasoning", 1, loop)
        predicted = [predict(AdmissionRequest(0, 0, 20, 20, 20, 1e9, 1e9, model))
                     for model in ("quick", "reasoning", "other")]
        assert predicted == [pytest.approx(0.3, rel=0.1), pytest.approx(20.0, rel=0.1), None]

    run(main)


def test_ttft_prediction_ignores_whole_answers() -> None:
    """Their first token comes with their last."""
    async def main(loop: SimLoop) -> None:
        it = system(TEXT + "admission: {max_in_flight: 4}", loop)
        await request(it, "m", 20, loop, stream=False)
        predictors = it.registry["a"].predictors
        assert predictors is not None
        assert (predictors.predict_s("m", 20), predictors.ahead.n) == (None, 0)

    run(main)


def test_ttft_prediction_needs_a_queue() -> None:
    """Without max_in_flight there is no predictor; after a reload with it, there is."""
    async def main(loop: SimLoop) -> None:
        old = system(TEXT, loop)
        assert old.registry["a"].predictors is None
        assert prediction_error_rows(old.registry) == {PREDICTOR_ERROR.name: []}
        assert system(TEXT + "admission: {max_in_flight: 4}", loop, old).registry["a"].predictors is not None

    run(main)
