"""Every check finds its planted fault and stays silent on its look-alike; its patch is valid."""

import pytest
import yaml

from stayfast.lab.doctor.plants import PLANTS, decoys, faults
from stayfast.lab.doctor.run import load_scene, observe_scene
from stayfast.lab.doctor.scene import Plant, healthy_scene, merge_trees
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.diagnose import diagnose
from stayfast.policy.findings.registry import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_check_has_a_fault_and_a_look_alike(check: Check) -> None:
    assert [plant for plant in faults() if plant.check == check.id]
    assert [plant for plant in decoys() if plant.check == check.id]


def test_names_of_plants_are_unique() -> None:
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)


@pytest.mark.parametrize("plant", faults(), ids=lambda plant: plant.name)
def test_planted_fault_is_found_and_nothing_else(plant: Plant) -> None:
    scene = plant.change(healthy_scene())
    found = diagnose(observe_scene(scene))
    shown = {finding.id for finding in found if finding.severity != "info" and not finding.hidden_by}
    assert plant.check in {finding.id for finding in found}
    assert shown - {plant.check} <= plant.also
    for change in (change for finding in found for change in finding.do if change.patch):
        load_scene(merge_trees(scene.settings, yaml.safe_load(change.patch)))


@pytest.mark.parametrize("plant", decoys(), ids=lambda plant: plant.name)
def test_look_alike_is_not_found(plant: Plant) -> None:
    found = diagnose(observe_scene(plant.change(healthy_scene())))
    assert plant.check not in {finding.id for finding in found}
    assert {finding.id for finding in found if finding.severity != "info" and not finding.hidden_by} <= plant.also


def test_healthy_scene_has_no_findings() -> None:
    assert diagnose(observe_scene(healthy_scene())) == []
