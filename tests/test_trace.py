"""Trace: validation, equality, derived values, and the file."""

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from heal.errors import HealError, TraceError
from heal.trace import _DTYPES, FORMAT, Trace
from heal.trace_parts import Patches, TracedImage, VisualSpan

SCORES = ("visual", "language", "synergy", "total", "contribution", "beta", "gamma")
VISUAL, SYNERGY = 2, 4


IMAGES = tuple(TracedImage.of(Image.new("RGB", (40 + i, 30), (i, 90, 200))) for i in range(2))


def make(steps: int = 3, layers: int = 2, heads: int = 4, seed: int = 0, **changes: Any) -> Trace:
    rng = np.random.default_rng(seed)
    shape = (steps, layers, heads)
    fields: dict[str, Any] = {name: rng.normal(size=shape).astype(np.float32) for name in SCORES}
    for name in SCORES:
        fields[name][rng.random(shape) < 0.2] = np.nan
    fields |= {
        "types": rng.choice([0, 1, 2, 3, 4, 255], shape).astype(np.uint8),
        "refreshed": np.arange(steps) % 2 == 0,
        "token_ids": rng.integers(0, 32000, steps),
        "tokens": tuple(f" t{i}" for i in range(steps)),
        "text": "".join(f" t{i}" for i in range(steps)),
        "config": {"method": "heal", "alpha": 0.5, "interval": 10},
        "seed": seed,
        "versions": {"heal": "0.1.0"},
        "logprobs": -rng.random(steps).astype(np.float32),
        "visual_attention": rng.random(shape).astype(np.float32),
        "entropy": rng.random(steps).astype(np.float32),
        "margin": rng.random(steps).astype(np.float32),
        "similarity": rng.normal(size=(steps, 3, 3)).astype(np.float32),
        "agreement": rng.normal(size=(steps, 3, 3)).astype(np.float32),
        "alternatives": rng.integers(0, 32000, (steps, 5)),
        "alternative_logprobs": -rng.random((steps, 5)).astype(np.float32),
        "alternative_tokens": tuple((" a", "b", "é", "", f"{i}") for i in range(steps)),
        "prompt": "USER: <image><image>\nwhat is this ? ASSISTANT:",
        "messages": ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is this ?"}]},),
        "images": IMAGES,
        "visual_positions": (VisualSpan(3, 19, 0), VisualSpan(20, 36, 1)),
        "prompt_tokens": 44,
    }
    return Trace(**(fields | changes))


def full(value: float, steps: int = 1) -> np.ndarray:
    return np.full((steps, 1, 3), value, np.float32)


def test_equal_by_value_with_nan() -> None:
    assert np.isnan(make().visual).any()
    assert make() == make()
    assert make() != make(seed=1)
    assert make() != "a trace"


@pytest.mark.parametrize("name", sorted(_DTYPES))
def test_every_array_counts_for_equality(name: str) -> None:
    array = getattr(make(), name).copy()
    array.flat[-1] = 0 if array.flat[-1] else 1
    assert make(**{name: array}) != make()


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": ("a", "b", "c")},
        {"text": "x"},
        {"config": {}},
        {"seed": 7},
        {"versions": {"heal": "2"}},
        {"prompt": "x"},
        {"messages": ()},
        {"images": IMAGES[::-1]},
        {"visual_positions": ((3, 19, 0), (20, 36, None))},
        {"prompt_tokens": 45},
        {"alternative_tokens": ()},
    ],
)
def test_everything_else_counts_too(change: dict[str, Any]) -> None:
    assert replace(make(), **change) != make()


def test_a_trace_does_not_change() -> None:
    array = np.zeros((3, 2, 4), np.float32)
    trace = make(visual=array)
    array[:] = 1
    assert not trace.visual.any()
    with pytest.raises(ValueError, match="read-only"):
        trace.visual[0, 0, 0] = 1
    with pytest.raises(FrozenInstanceError):
        trace.text = "other"  # type: ignore[misc]
    with pytest.raises(TypeError, match="unhashable"):
        hash(trace)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"visual": np.zeros((3, 2), np.float32)}, r"visual must have the shape \[step, layer, head\]"),
        ({"beta": np.zeros((3, 2, 5), np.float32)}, r"beta must be .* \[3, 2, 4\], got float32 \[3, 2, 5\]"),
        ({"gamma": np.zeros((3, 2, 4))}, "gamma must be a numpy array of float32 .* got float64"),
        ({"types": np.zeros((3, 2, 4), np.int64)}, "types must be .* uint8"),
        ({"refreshed": [True, False, True]}, "refreshed must be a numpy array .* got list"),
        ({"token_ids": np.zeros(2, np.int64)}, r"token_ids must be .* \[3\], got int64 \[2\]"),
        ({"tokens": ("a", "b")}, "one string per step: 3 steps, 2 tokens"),
        ({"config": {"device": object()}}, "config must be JSON-serialisable"),
        ({"tokens": "abc"}, "tokens must be a tuple of strings"),
        ({"tokens": 3}, "tokens must be a tuple of strings"),
        ({"seed": True}, "seed an integer"),
        ({"config": [1, 2]}, "config must be a dict"),
        ({"text": None}, "text must be a string"),
        ({"versions": {"heal": 1}}, "versions must be strings"),
        ({"logprobs": np.zeros(2, np.float32)}, r"logprobs must be .* float32 \[3\], got float32 \[2\]"),
        ({"logprobs": [0.0, 0.0, 0.0]}, "logprobs must be a numpy array .* got list"),
        ({"alternatives": np.zeros((3, 4), np.int64)}, r"alternatives must be .* int64 \[3, 5\]"),
        ({"alternatives": np.zeros((3, 5), np.float32)}, "alternatives must be .* got float32"),
        ({"alternative_logprobs": np.zeros(3, np.float32)}, r"alternative_logprobs must be .* \[3, 5\]"),
        ({"alternative_tokens": "abc"}, "alternative_tokens must be a tuple with one entry for each of 3 steps"),
        ({"alternative_tokens": (("a",),)}, "alternative_tokens must be a tuple with one entry for each of 3 steps"),
        ({"alternative_tokens": ("a", "b", "c")}, "alternative_tokens must have at most 5 strings"),
        ({"alternative_tokens": (("a",) * 6,) * 3}, "alternative_tokens must have at most 5 strings"),
        ({"prompt": None}, "prompt must be a string, got NoneType"),
        ({"prompt_tokens": -1}, "prompt_tokens must be a number of tokens or None, got -1"),
        ({"prompt_tokens": True}, "prompt_tokens must be a number of tokens or None, got True"),
        ({"messages": "hello"}, "messages must be a tuple of chat messages, got str"),
        ({"messages": ["hello"]}, "a message must be a dict, got str"),
        ({"messages": [{"role": object()}]}, "a message must be JSON-serialisable"),
        ({"images": [b"png"]}, "images must be a tuple of TracedImage"),
        ({"visual_positions": 3}, r"visual_positions must be a tuple of \(start, stop, image\), got int"),
        ({"visual_positions": [(1,)]}, r"visual_positions must be spans .* got \(1,\)"),
        ({"visual_positions": [(1, "2")]}, "visual_positions must be spans"),
        ({"visual_positions": [(5, 5)]}, "must be in order and not empty"),
        ({"visual_positions": [(5, 9), (8, 12)]}, r"got \(8, 12\) after position 9"),
        ({"visual_positions": [(40, 45)]}, "must lie in the prompt of 44 tokens"),
        ({"visual_positions": [(1, 2, 2)]}, "must name one of 2 images, got image 2"),
    ],
)
def test_invalid_fields_are_rejected(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        make(**change)


def looking(**changes: Any) -> Patches:
    levels = np.arange(3 * 2 * 4 * 6, dtype=np.uint8).reshape(3, 2, 4, 6)
    fields: dict[str, Any] = {"levels": levels, "unit": np.ones((3, 2, 4), np.float32), "grid": (2, 3)}
    return Patches(**(fields | changes))


def test_patches_are_saved_and_compared(tmp_path: Path) -> None:
    trace = make(patches=looking(box=(0.1, 0, 0.9, 1)))
    trace.save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    assert loaded == trace != make()
    assert loaded.patches != looking()
    assert loaded.patches == looking(box=[0.1, 0, 0.9, 1])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"levels": np.zeros((3, 2, 4, 6), np.float32)}, "levels of patches must be a numpy array of uint8"),
        ({"unit": np.ones((3, 2), np.float32)}, r"unit of patches must be a numpy array of float32 \[3, 2, 4\]"),
        ({"grid": (2, 4)}, "a grid of 2 × 4 does not have 6 patches"),
        ({"grid": (6,)}, "must be rows and columns"),
        ({"box": (0, 0, 1)}, "must be left, top, right and bottom"),
        ({"box": (0.5, 0, 0.2, 1)}, "must lie in the image"),
    ],
)
def test_invalid_patches_are_rejected(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        looking(**change)


def test_patches_belong_to_the_heads_of_the_trace() -> None:
    with pytest.raises(TraceError, match=r"patches must be Patches for \[4, 2, 4\]"):
        make(steps=4, patches=looking())


def test_shape_and_repr() -> None:
    trace = make()
    assert (trace.steps, trace.layers, trace.heads) == (3, 2, 4)
    assert repr(trace) == "Trace(3 steps, 2 layers, 4 heads, text=' t0 t1 t2')"


def test_alpha_vis_is_defined_for_mixed_heads_only() -> None:
    visual = np.array([[[3.0, 1.0, -1.0, np.nan, 0.0]]], np.float32)
    language = np.array([[[1.0, 1.0, 2.0, 1.0, 1.0]]], np.float32)
    trace = make(1, 1, 5, visual=visual, language=language)
    assert trace.alpha_vis.dtype == np.float32
    np.testing.assert_array_equal(trace.alpha_vis, [[[0.75, 0.5, np.nan, np.nan, np.nan]]])


def test_mean_alpha_over_heads_of_a_type() -> None:
    visual = np.array([[[3.0, 1.0, 9.0]], [[1.0, 1.0, 1.0]]], np.float32)
    types = np.array([[[SYNERGY, SYNERGY, VISUAL]], [[VISUAL, VISUAL, VISUAL]]], np.uint8)
    trace = make(2, 1, 3, visual=visual, language=full(1, 2), types=types)
    np.testing.assert_allclose(trace.mean_alpha(), [0.625, np.nan])
    np.testing.assert_allclose(trace.mean_alpha(VISUAL), [0.9, 0.5])
    np.testing.assert_allclose(trace.mean_alpha({SYNERGY, VISUAL}), [(0.75 + 0.5 + 0.9) / 3, 0.5], rtol=1e-6)


def test_parts_of_the_total_over_synergy_heads() -> None:
    """They need not add up to 1: the rest is the information of both modalities together, which can be negative."""
    visual = np.array([[[3.0, 1.0, 9.0, -1.0]], [[1.0, 1.0, 1.0, 1.0]]], np.float32)
    total = np.array([[[8.0, 2.0, 50.0, 70.0]], [[1.0, 1.0, 1.0, 1.0]]], np.float32)
    types = np.array([[[SYNERGY, SYNERGY, VISUAL, SYNERGY]], [[VISUAL] * 4]], np.uint8)
    language = np.ones((2, 1, 4), np.float32)
    trace = make(2, 1, 4, visual=visual, language=language, total=total, types=types)
    np.testing.assert_allclose(trace.mean_parts(), [[0.4, 0.2], [np.nan, np.nan]])


def test_mean_alpha_skips_heads_that_are_not_mixed() -> None:
    visual = np.array([[[1.0, -1.0, np.nan]]], np.float32)
    types = np.full((1, 1, 3), SYNERGY, np.uint8)
    assert make(1, 1, 3, visual=visual, language=full(1), types=types).mean_alpha().tolist() == [0.5]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 4),
    st.integers(0, 1000),
    st.text(),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text()),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, steps: int, seed: int, text: str, config: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.safetensors"
    trace = make(steps, seed=seed, text=text, config=config, tokens=(text,) * steps)
    trace.save(path)
    assert Trace.load(path) == trace


def test_round_trip_of_unicode_and_a_cut_emoji(tmp_path: Path) -> None:
    trace = make(tokens=("猫", "\ud83d", " ñ\x00\n"), text="猫🐈\ufffd ñ")
    trace.save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    assert loaded.tokens == trace.tokens
    assert loaded.text == trace.text


def test_round_trip_of_an_empty_trace(tmp_path: Path) -> None:
    trace = make(steps=0)
    trace.save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    assert loaded == trace
    assert (loaded.steps, loaded.layers, loaded.heads) == (0, 2, 4)
    assert loaded.mean_alpha().shape == (0,)
    assert len(loaded.to_dataframe()) == 0


def test_config_equals_its_json_round_trip(tmp_path: Path) -> None:
    trace = make(config={"layers": (1, 2), "limit": float("nan")})
    assert trace.config["layers"] == [1, 2]
    trace.save(tmp_path / "t")
    assert Trace.load(tmp_path / "t") == trace


def test_strided_arrays_keep_their_values(tmp_path: Path) -> None:
    turned = np.arange(24, dtype=np.float32).reshape(4, 2, 3).T
    make(visual=turned).save(tmp_path / "t")
    np.testing.assert_array_equal(Trace.load(tmp_path / "t").visual, turned)


def test_saving_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one" / "t.safetensors"
    make().save(path)
    make(seed=1).save(str(path))
    assert Trace.load(path) == make(seed=1)
    assert [file.name for file in path.parent.iterdir()] == ["t.safetensors"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    make().save(path)

    def no_space(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("heal.trace.os.fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        make(seed=1).save(path)
    assert Trace.load(path) == make()
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


def rewritten(path: Path, **metadata: str) -> Path:
    """The arrays of a saved trace under other metadata."""
    make().save(path)
    save_file(load_file(path), path, metadata=metadata)
    return path


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no trace at .*nowhere"):
        Trace.load(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="no trace at"):
        Trace.load(tmp_path)
    assert issubclass(TraceError, HealError)


@pytest.mark.parametrize("content", [b"", b"{}", b"not a trace at all", bytes(100)])
def test_another_file_is_not_a_trace(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(TraceError, match="not a trace"):
        Trace.load(tmp_path / "t")


def test_other_safetensors_are_not_traces(tmp_path: Path) -> None:
    save_file({"weight": np.zeros(3)}, tmp_path / "t")
    with pytest.raises(TraceError, match="safetensors file, but not a trace"):
        Trace.load(tmp_path / "t")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_damaged(tmp_path: Path, share: float) -> None:
    path = tmp_path / "t"
    make().save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(TraceError, match="damaged"):
        Trace.load(path)


@pytest.mark.parametrize("record", ["", "[]", "{", json.dumps({"tokens": []})])
def test_a_damaged_record_is_named(tmp_path: Path, record: str) -> None:
    path = rewritten(tmp_path / "t", heal_trace=str(FORMAT), record=record)
    with pytest.raises(TraceError, match="damaged trace"):
        Trace.load(path)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    make().save(path)
    arrays = load_file(path)
    del arrays["beta"]
    save_file(arrays, path, metadata={"heal_trace": str(FORMAT), "record": "{}"})
    with pytest.raises(TraceError, match="beta"):
        Trace.load(path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "t", heal_trace=str(FORMAT + 1), record="{}")
    with pytest.raises(TraceError, match=r"newer than .* update heal"):
        Trace.load(path)


def older(path: Path, version: int, *without: str) -> Path:
    """A trace file as an earlier version wrote it."""
    make().save(path)
    with safe_open(path, framework="numpy") as file:
        record = json.loads(file.metadata()["record"])
    del record["alternative_tokens"]
    arrays = {name: array for name, array in load_file(path).items() if name not in without}
    save_file(arrays, path, metadata={"heal_trace": str(version), "record": json.dumps(record)})
    return path


SIGNALS = ("visual_attention", "entropy", "margin", "similarity", "agreement")
OTHERS = ("alternatives", "alternative_logprobs")


def test_files_of_format_3_have_no_alternatives(tmp_path: Path) -> None:
    path = older(tmp_path / "t", 3, *OTHERS)
    nothing: dict[str, Any] = dict.fromkeys(OTHERS)
    loaded = Trace.load(path)
    assert loaded == replace(make(), alternative_tokens=(), **nothing)
    assert (loaded.alternatives == -1).all()
    assert np.isnan(loaded.alternative_logprobs).all()
    loaded.save(path)
    assert Trace.load(path) == loaded


def test_older_files_have_no_signals(tmp_path: Path) -> None:
    loaded = Trace.load(older(tmp_path / "t", 2, *SIGNALS, *OTHERS))
    assert all(np.isnan(getattr(loaded, name)).all() for name in SIGNALS)
    nothing: dict[str, Any] = dict.fromkeys((*SIGNALS, *OTHERS))
    assert loaded == replace(make(), alternative_tokens=(), **nothing)
    first = Trace.load(older(tmp_path / "t", 1, *SIGNALS, *OTHERS, "logprobs"))
    assert np.isnan(first.logprobs).all()
    assert first.prompt_tokens is None


def test_signals_have_their_shapes() -> None:
    nothing: dict[str, Any] = dict.fromkeys(SIGNALS)
    trace = make(**nothing)
    assert trace.visual_attention.shape == (3, 2, 4)
    assert trace.entropy.shape == trace.margin.shape == (3,)
    assert trace.similarity.shape == trace.agreement.shape == (3, 3, 3)
    with pytest.raises(TraceError, match=r"similarity must be .* float32 \[3, 3, 3\]"):
        make(similarity=np.zeros((3, 3), np.float32))


def test_dataframe_is_long_form() -> None:
    trace = make()
    frame = trace.to_dataframe()
    scores = ["visual", "language", "synergy", "total", "contribution", "beta", "gamma", "visual_attention"]
    assert list(frame.columns) == [
        "step",
        "token",
        "logprob",
        "entropy",
        "margin",
        "layer",
        "head",
        *scores,
        "alpha_vis",
        "type",
        "refreshed",
    ]
    assert len(frame) == 3 * 2 * 4
    row = frame[(frame.step == 1) & (frame.layer == 1) & (frame["head"] == 2)].iloc[0]
    assert row.token == " t1"
    assert row.logprob == trace.logprobs[1]
    assert row.refreshed == trace.refreshed[1]
    for name in [*scores, "alpha_vis"]:
        np.testing.assert_array_equal(row[name], getattr(trace, name)[1, 1, 2])


def test_dataframe_names_the_types() -> None:
    types = np.array([[[0, 1, 2, 3, 4, 255]]], np.uint8)
    names = ["causal-redundant", "info-redundant", "visual", "language", "synergy", "unknown"]
    assert make(1, 1, 6, types=types).to_dataframe()["type"].tolist() == names
    with pytest.raises(TraceError, match=r"not in HeadType: \[9\]"):
        make(1, 1, 1, types=np.full((1, 1, 1), 9, np.uint8)).to_dataframe()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"record": "[" * 50_000}, "damaged trace: it is nested more than 64 levels"),
        ({"record": '{"tokens": [], "tokens": []}'}, "damaged trace: the key 'tokens' occurs twice"),
        ({"record": "9" * 5000}, "damaged trace: it has a number of 5000 digits"),
        ({"record": "[]"}, "damaged trace"),
        ({"heal_trace": "9" * 5000}, "not a trace"),
    ],
)
def test_a_forged_record_is_refused(tmp_path: Path, change: dict[str, str], complaint: str) -> None:
    make().save(tmp_path / "good")
    with safe_open(tmp_path / "good", framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    save_file(arrays, tmp_path / "forged", metadata=metadata | change)
    with pytest.raises(TraceError, match=complaint):
        Trace.load(tmp_path / "forged")
    for place in (tmp_path, tmp_path / ("x" * 5000)):
        with pytest.raises(TraceError, match="no trace at"):
            Trace.load(place)


def test_a_config_with_values_that_json_lacks_can_be_loaded(tmp_path: Path) -> None:
    trace = make(config={"a": float("nan"), "b": float("inf")})
    trace.save(tmp_path / "t")
    assert Trace.load(tmp_path / "t") == trace
    assert trace.config == {"a": None, "b": "inf"}
