"""`stayfast serve --model PATH`: what fits is printed, what does not is refused before anything starts."""

from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.settings import SettingsError
from stayfast.workers.supervisor import EXIT_BAD_SETTINGS
from tests.engine.random_gguf import write_random_gguf
from tests.server.compose_rig import Compose


@pytest.fixture
def compose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compose:
    """A gateway that only pretends."""
    fake = Compose()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stayfast.cli.serve.compose", fake)
    return fake


def set_memory(monkeypatch: pytest.MonkeyPatch, mib: float) -> None:
    monkeypatch.setattr("stayfast.engine.fit.available_memory", lambda: mib * (1 << 20))
    monkeypatch.setattr("stayfast.engine.fit.n_cores", lambda: 2)


def test_serve_model_prints_what_fits(tmp_path: Path, compose: Compose, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, KV cache per token, slots x context, and the contexts that would fit, before the gateway starts."""
    set_memory(monkeypatch, 1024)
    model = write_random_gguf(tmp_path / "random.gguf")
    assert main(["serve", "--model", str(model), "--port", "0"]) == 0
    assert capsys.readouterr().err.splitlines()[:3] == [
        "tiny: random: 0.7 M parameters, weights 3 MiB, KV cache 2,048 bytes per token",
        "tiny: 8 slots of 8192 tokens: KV cache 128 MiB, in all 453 MiB; memory: 922 MiB usable",
        "tiny: contexts of 8192 tokens that fit: 37 in f16, 70 in q8_0, 132 in q4_0"]
    assert compose.settings is not None


def test_serve_model_that_does_not_fit_is_refused(tmp_path: Path, compose: Compose, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything starts: status 78, the numbers, and what to change; `check` has status 1."""
    set_memory(monkeypatch, 300)
    model = write_random_gguf(tmp_path / "random.gguf")
    assert main(["serve", "--model", str(model), "--port", "0"]) == EXIT_BAD_SETTINGS
    message = capsys.readouterr().err
    assert "upstreams.tiny.model: " in message
    assert ("needs 326 MiB (weights 3 MiB, 1 x 512 tokens of KV cache 1 MiB), but 270 MiB are usable: take one of "
            "prompt_cache_mib: 0; a smaller model") in message
    assert compose.settings is None
    Path("s.yaml").write_text(f"upstreams: {{up: {{kind: embedded, model: {model}}}}}\nroutes: {{m: [up]}}")
    assert main(["check", "s.yaml"]) == 1


def test_serve_models_that_do_not_fit_together_are_refused(tmp_path: Path, compose: Compose, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    """Each alone would fit."""
    set_memory(monkeypatch, 700)
    one = f"{{kind: embedded, model: {write_random_gguf(tmp_path / 'random.gguf')}}}"
    Path("s.yaml").write_text(f"upstreams: {{one: {one}}}\nroutes: {{m: [one]}}")
    assert main(["serve", "--config", "s.yaml", "--port", "0"]) == 0
    Path("s.yaml").write_text(f"upstreams: {{one: {one}, two: {one}}}\nroutes: {{m: [one, two]}}")
    capsys.readouterr()
    assert main(["serve", "--config", "s.yaml", "--port", "0"]) == EXIT_BAD_SETTINGS
    assert capsys.readouterr().err.startswith("upstreams.two: model ")
    assert main(["check", "s.yaml"]) == 1


def test_reload_does_not_measure_running_engine_against_what_it_left(tmp_path: Path, compose: Compose,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own memory is no longer free. A model that is new in the settings is measured."""
    set_memory(monkeypatch, 600)
    model = write_random_gguf(tmp_path / "random.gguf")
    text = "upstreams: {{up: {{kind: embedded, model: {}, n_slots: {}}}}}\nroutes: {{m: [up]}}"
    Path("s.yaml").write_text(text.format(model, 8))
    assert main(["serve", "--config", "s.yaml", "--port", "0"]) == 0
    set_memory(monkeypatch, 300)
    assert list(compose.given["reload"]().upstreams) == ["up"]
    Path("s.yaml").write_text(text.format(model, 9))
    with pytest.raises(SettingsError, match="are usable"):
        compose.given["reload"]()
