"""The step of a route that leaves parts of prompts out."""

from stayfast.pipeline.context.diet_step import DietStep
from stayfast.pipeline.context.step import ContextStep
from stayfast.policy.context.diet import DietConfig


def make_diet_steps(config: DietConfig) -> tuple[ContextStep, ...]:
    """Empty if nothing is to be left out."""
    return (DietStep(config),) if config.drop_repeats or config.minify_json else ()
