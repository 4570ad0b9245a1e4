"""All planted faults and look-alikes, from the modules of their themes."""

from stayfast.lab.doctor import (
    cache_plants,
    engine_plants,
    latency_plants,
    load_plants,
    machine_plants,
    prompt_plants,
    prompt_version_plants,
    tenant_plants,
    upstream_plants,
    wait_plants,
)
from stayfast.lab.doctor.scene import Plant

PLANTS: tuple[Plant, ...] = (
    *latency_plants.PLANTS, *wait_plants.PLANTS, *upstream_plants.PLANTS, *load_plants.PLANTS, *prompt_plants.PLANTS,
    *prompt_version_plants.PLANTS, *cache_plants.PLANTS, *engine_plants.PLANTS, *machine_plants.PLANTS,
    *tenant_plants.PLANTS)


def faults() -> list[Plant]:
    """The plants that must be found."""
    return [plant for plant in PLANTS if plant.is_fault]


def decoys() -> list[Plant]:
    """The plants that must not be found as their check."""
    return [plant for plant in PLANTS if not plant.is_fault]
