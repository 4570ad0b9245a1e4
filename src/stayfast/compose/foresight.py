"""What the queue is told of the upstreams behind it: what a first token will take, and how many wait at their limits."""

from stayfast.observe.families import PREDICTOR_ERROR
from stayfast.observe.totals import Rows
from stayfast.pipeline.places import Asked, Places
from stayfast.pipeline.stages.route import ANY_MODEL, Router
from stayfast.policy.predict import Predictor
from stayfast.upstreams.state.upstream_state import Registry


def foresee(places: Places, router: Router, registry: Registry) -> None:
    """Have every upstream's first tokens learned, and the queue know of them, and of the queues behind it."""
    for member in registry:
        member.predictor = member.predictor or Predictor()
    routes = router.routes

    def predict(asked: Asked) -> float | None:
        """By the quickest upstream of its route; None where nothing is known of any."""
        route = routes.get(asked.model) or routes.get(ANY_MODEL)
        least_s = None
        for target in route.targets if route is not None else ():
            predictor = target.member.predictor
            seconds = predictor.predicted_s(asked.n_input) if predictor is not None else None
            if seconds is not None and (least_s is None or seconds < least_s):
                least_s = seconds
        return least_s

    def n_held() -> int:
        return sum(member.n_waiting for member in registry)

    places.predict, places.n_held = predict, n_held


def errors(registry: Registry) -> Rows:
    """How far off predictions were, as a metric; none where nothing is foreseen."""
    found = [((member.upstream.name,), member.predictor.error_ratio) for member in registry if member.predictor is not None]
    return {PREDICTOR_ERROR.name: [(labels, ratio) for labels, ratio in found if ratio is not None]}
