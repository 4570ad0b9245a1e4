"""Phases of replicas in a settings file, and across settings."""

import pytest

from stayfast.settings import Settings, SettingsError, SettingsText, load_settings

GPU = 'upstreams: {{gpu: {{kind: vllm, base_url: "http://gpu:8000/v1", {0}}}}}\nroutes: {{m: [gpu]}}\n'


def read(upstream: str) -> Settings:
    return load_settings(SettingsText("w.yaml", GPU.format(upstream)), {})


def test_phases_on_without_probe_is_refused_with_the_remedy() -> None:
    with pytest.raises(SettingsError, match=r"upstreams\.gpu\.warm\.phases.*probe: true.*phases: off"):
        read("probe: false, warm: {phases: on}")


@pytest.mark.parametrize("upstream", ["probe: true, warm: {phases: on}", "probe: false, warm: {phases: off}",
                                      "probe: false, warm: {phases: auto}", "probe: false"])
def test_phases_that_need_no_missing_probe_are_accepted(upstream: str) -> None:
    assert set(read(upstream).upstreams) == {"gpu"}
