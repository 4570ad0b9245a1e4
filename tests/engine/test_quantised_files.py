"""A quantised model: its tensors, its metadata, what is refused, and what an interrupted writing leaves."""

import os
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.engine.quantise import writer as writer_module
from stayfast.engine.quantise.model_file import FILE_TYPES, NotQuantisable, plan_conversion
from stayfast.engine.quantise.tensor_types import TARGETS, choose_type
from stayfast.engine.quantise.writer import write_quantised
from tests.engine.quantise_rig import read_weights, rewrite, write_model

# The largest error of a value, as a share of the largest of its block: half a step of 255, 32 and 16; and that of the scale.
# q5_0 and q4_0 have one step less on the positive side, so that an error there is up to a whole step.
MOST_ERROR = {"q8_0": 0.5 / 127 + 0.001, "q5_0": 1 / 16 + 0.001, "q4_0": 1 / 8 + 0.001}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An f16 model of one layer."""
    return write_model(tmp_path_factory.mktemp("model") / "small.f16.gguf", n_layer=1)


def convert(source: Path, target: Path, to: str) -> Path:
    """Quantise."""
    write_quantised(plan_conversion(source, to), target)
    return target


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("to", TARGETS)
def test_write_quantised_weights_are_near_the_source(tmp_path: Path, kind: str, to: str) -> None:
    source = write_model(tmp_path / f"m.{kind}.gguf", kind, n_layer=1)
    if kind == to:
        with pytest.raises(NotQuantisable, match="nothing to do"):
            plan_conversion(source, to)
        return
    before, after = read_weights(source), read_weights(convert(source, tmp_path / "new.gguf", to))
    assert before.keys() == after.keys()
    for name, old in before.items():
        if old.ndim == 1:
            assert np.array_equal(old, after[name])
            continue
        used = "q8_0" if name == "output.weight" else to
        blocks, errors = old.reshape(-1, 32), np.abs(old - after[name]).reshape(-1, 32)
        assert np.all(errors <= MOST_ERROR[used] * np.abs(blocks).max(axis=1, keepdims=True)), name
        assert used == kind or errors.max() > 0


def test_write_quantised_equals_the_library_on_whole_tensors(tmp_path: Path, model: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a matrix are converted one after another; the bytes are those of the whole."""
    monkeypatch.setattr(writer_module, "_STEP_VALUES", 64 * 3)
    new = {one.name: one for one in gguf.GGUFReader(convert(model, tmp_path / "new.gguf", "q5_0")).tensors}
    for old in gguf.GGUFReader(model).tensors:
        if old.name.endswith("ffn_down.weight"):
            whole = gguf.quants.quantize(old.data.astype(np.float32), gguf.GGMLQuantizationType.Q5_0)
            assert np.array_equal(new[old.name].data, whole)
            break
    else:
        pytest.fail("no such tensor")


@pytest.mark.parametrize("to", TARGETS)
def test_write_quantised_metadata_stay_but_for_the_file_type(tmp_path: Path, model: Path, to: str) -> None:
    before, after = gguf.GGUFReader(model), gguf.GGUFReader(convert(model, tmp_path / "new.gguf", to))
    changed = {"general.file_type", "general.quantization_version", "GGUF.kv_count"}
    assert before.fields.keys() - changed == after.fields.keys() - changed
    for name in before.fields.keys() - changed:
        assert before.fields[name].contents() == after.fields[name].contents(), name
        assert before.fields[name].types == after.fields[name].types, name
    assert after.fields["general.file_type"].contents() == FILE_TYPES[to] == gguf.LlamaFileType[f"MOSTLY_{to.upper()}"]
    assert after.fields["general.quantization_version"].contents() == gguf.GGML_QUANT_VERSION
    shapes = [[(one.name, tuple(one.shape)) for one in file.tensors] for file in (before, after)]
    assert shapes[0] == shapes[1]


def test_write_quantised_tied_embedding_stays_at_q8_0(tmp_path: Path) -> None:
    tied = write_model(tmp_path / "tied.gguf", n_layer=1, is_tied=True)
    kinds = {one.name: one.target for one in plan_conversion(tied, "q4_0").tensors}
    assert kinds["token_embd.weight"] == "q8_0"
    plan = plan_conversion(write_model(tmp_path / "m.gguf", n_layer=1), "q4_0")
    untied = {one.name: one.target for one in plan.tensors}
    assert (untied["token_embd.weight"], untied["output.weight"], untied["output_norm.weight"]) == ("q4_0", "q8_0", "f32")


@pytest.mark.parametrize(("name", "shape", "expected"), [
    ("blk.0.ffn_down.weight", (64, 8), "q4_0"), ("blk.0.ffn_down_exps.weight", (64, 8, 4), "q4_0"),
    ("blk.0.ffn_down.weight", (48, 8), "f16"), ("blk.0.attn_q.bias", (64,), "f16"), ("blk.0.attn_norm.weight", (64,), "f16"),
    ("blk.0.ffn_gate_inp.weight", (64, 8), "f16"), ("position_embd.weight", (64, 512), "f16"),
    ("blk.0.ssm_conv1d.weight", (64, 4), "f16"), ("v.blk.0.attn_q.weight", (64, 64), "f16"),
    ("blk.0.attn_q_norm.weight", (64, 8), "f16")])
def test_choose_type_is_by_name_and_shape(name: str, shape: tuple[int, ...], expected: str) -> None:
    assert choose_type(name, shape, "f16", "q4_0", is_tied=False) == expected


def test_plan_conversion_size_is_that_of_the_file(tmp_path: Path, model: Path) -> None:
    plan = plan_conversion(model, "q4_0")
    write_quantised(plan, tmp_path / "new.gguf")
    assert plan.n_bytes == (tmp_path / "new.gguf").stat().st_size
    assert plan.weight_bytes[1] == sum(int(one.n_bytes) for one in gguf.GGUFReader(tmp_path / "new.gguf").tensors)
    assert plan.weight_bytes[0] == sum(int(one.n_bytes) for one in gguf.GGUFReader(model).tensors)


def test_plan_conversion_second_loss_is_seen(tmp_path: Path, model: Path) -> None:
    assert not plan_conversion(model, "q4_0").is_second_loss
    assert plan_conversion(convert(model, tmp_path / "m.q8_0.gguf", "q8_0"), "q4_0").is_second_loss


def test_plan_conversion_quantised_source_is_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(NotQuantisable, match=r"is q5_0 already.*f16"):
        plan_conversion(convert(model, tmp_path / "m.q5_0.gguf", "q5_0"), "q4_0")


def test_plan_conversion_split_model_is_refused(tmp_path: Path, model: Path) -> None:
    data = model.read_bytes()  # one more key, so that the count grows
    n_keys = struct.unpack_from("<Q", data, 16)[0]
    key = b"split.count"
    split = tmp_path / "split.gguf"
    split.write_bytes(data[:16] + struct.pack("<QQ", n_keys + 1, len(key)) + key + struct.pack("<IH", 2, 3) + data[24:])
    with pytest.raises(NotQuantisable, match="one of 3 parts"):
        plan_conversion(split, "q4_0")


@pytest.mark.parametrize("data", [b"", b"GGUF", b"PK\x03\x04", b"GGUF" + b"\0" * 40, b"GGUF" + b"\xff" * 60])
def test_plan_conversion_other_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(NotQuantisable, match=r"not a GGUF file|damaged"):
        plan_conversion(path, "q4_0")


@settings(max_examples=80)
@given(st.data())
def test_plan_conversion_damaged_head_is_refused_or_read(model: Path, tmp_path_factory: pytest.TempPathFactory,
                                                         data: st.DataObject) -> None:
    """Any byte of the head changed, or the file cut anywhere: a clear refusal, or a plan; no other error, no hang."""
    whole = bytearray(model.read_bytes())
    path = tmp_path_factory.mktemp("damage") / "m.gguf"
    if data.draw(st.booleans()):
        end = data.draw(st.integers(4, len(whole) - 32))
        path.write_bytes(whole[:end])
        with pytest.raises(NotQuantisable):
            plan_conversion(path, "q4_0")
        return
    whole[data.draw(st.integers(4, 8000))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        write_quantised(plan_conversion(path, "q4_0"), path.with_name("new.gguf"))
    except NotQuantisable:
        assert not path.with_name("new.gguf").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e5])
def test_write_quantised_weight_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    source = write_model(tmp_path / "m.gguf", "f32", n_layer=1)
    tensor = next(one for one in gguf.GGUFReader(source, "r+").tensors if one.name == "blk.0.ffn_up.weight")
    tensor.data[3, 5] = value
    with pytest.raises(NotQuantisable, match=r"blk.0.ffn_up.weight has a weight"):
        write_quantised(plan_conversion(source, "q4_0"), tmp_path / "new.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "m.plain"]


def test_write_quantised_interrupted_leaves_nothing(tmp_path: Path, model: Path) -> None:
    seen: list[str] = []

    def interrupt(name: str, share: float) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_quantised(plan_conversion(model, "q4_0"), tmp_path / "new.gguf", report=interrupt)
    assert list(tmp_path.iterdir()) == []
    assert seen
    assert all(name.endswith(".partial") for name in seen)


def test_write_quantised_existing_file_stays_unless_overwritten(tmp_path: Path, model: Path) -> None:
    target = tmp_path / "new.gguf"
    target.write_bytes(b"mine")
    plan = plan_conversion(model, "q4_0")
    with pytest.raises(NotQuantisable, match="--force"):
        write_quantised(plan, target)
    assert target.read_bytes() == b"mine"
    write_quantised(plan, target, overwrite=True)
    assert target.stat().st_size == plan.n_bytes


def test_write_quantised_onto_its_source_is_refused(tmp_path: Path, model: Path) -> None:
    source = tmp_path / "m.gguf"
    shutil.copyfile(model, source)
    os.link(source, tmp_path / "other-name.gguf")
    for name in ("m.gguf", "other-name.gguf"):
        with pytest.raises(NotQuantisable, match="the model itself"):
            write_quantised(plan_conversion(source, "q4_0"), tmp_path / name, overwrite=True)


def test_write_quantised_full_disk_is_refused_before_writing(tmp_path: Path, model: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(NotQuantisable, match="free"):
        write_quantised(plan_conversion(model, "q4_0"), tmp_path / "new.gguf")
    assert list(tmp_path.iterdir()) == []


def test_write_quantised_copy_of_the_library_has_the_same_weights(tmp_path: Path, model: Path) -> None:
    """The rig writes q8_0 by the library alone: the same bytes as ours."""
    theirs = {one.name: one.data for one in gguf.GGUFReader(rewrite(model, tmp_path / "theirs.gguf", "q8_0")).tensors}
    ours = gguf.GGUFReader(convert(model, tmp_path / "ours.gguf", "q8_0")).tensors
    assert all(np.array_equal(theirs[one.name], one.data) for one in ours)
