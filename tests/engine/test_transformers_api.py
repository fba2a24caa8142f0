"""One test per private or unstable API of transformers that heal uses. A failure names what changed."""

import ast
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from heal.engine import transformers_api as api
from heal.errors import HealWarning
from tests import zoo

SOURCE = Path(api.__file__).parents[1]
HOME = Path(api.__file__)


@contextmanager
def changed(name: str) -> Iterator[None]:
    """Report every failure inside as a change of this API."""
    try:
        yield
    except Exception as error:
        pytest.fail(f"{name} of transformers {transformers.__version__} has changed: {error!r}. See {HOME.name}")


@pytest.fixture(scope="module")
def model() -> Any:
    return zoo.build("llava")


@pytest.fixture
def batch(model: Any) -> dict[str, Any]:
    return zoo.inputs(model, [zoo.Row(), zoo.Row(text_after=7, salt=1)])


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


# ── the version ───────────────────────────────────────────────────────────────────────────────────────


def test_the_installed_version_is_in_the_tested_range() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        api.warn_if_untested(transformers.__version__)


@pytest.mark.parametrize("version", ["5.21.9", "5.23.0", "5.23.0.dev0", "6.0.0", "4.57.1"])
def test_importing_it_with_another_version_warns_once(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(transformers, "__version__", version)
    spec = importlib.util.spec_from_file_location("another_import_of_it", HOME)
    assert spec is not None
    assert spec.loader is not None
    with pytest.warns(HealWarning, match=f"transformers {version} is installed.*tested with 5.22") as told:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert len(told) == 1


def test_pyproject_and_the_warning_name_the_same_range() -> None:
    low, high = (".".join(map(str, numbers)) for numbers in api.TESTED)
    assert f'"transformers>={low},<{high}"' in (SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")


# ── configurations and modules ────────────────────────────────────────────────────────────────────────


def test_config_attn_implementation(model: Any) -> None:
    with changed("config._attn_implementation, set_attn_implementation"):
        before = api.attention_name(model.config.get_text_config())
        try:
            model.set_attn_implementation({"text_config": "eager"})
            assert api.attention_name(model.config.get_text_config()) == "eager"
            assert api.attention_name(model.config.vision_config) == before == "sdpa"
        finally:
            model.set_attn_implementation({"text_config": before})


def test_config_name_or_path(tmp_path: Path, model: Any) -> None:
    with changed("config._name_or_path"):
        assert api.checkpoint_name(model) == ""
        model.save_pretrained(tmp_path)
        assert api.checkpoint_name(type(model).from_pretrained(tmp_path)) == str(tmp_path)
    assert api.checkpoint_name(SimpleNamespace()) == ""


def test_eager_attention_forward(model: Any) -> None:
    with changed("eager_attention_forward in the file of a model"):
        function = api.eager_attention(model.get_decoder().layers[0].self_attn)
        assert function is not None
        assert parameters(function)[:5] == ["module", "query", "key", "value", "attention_mask"]


def test_hf_hook(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    with changed("_hf_hook.execution_device (accelerate)"):
        layers: Any = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2))
        assert api.execution_device(layers[1]) is None
        places = {"0": "cpu", "1": "disk"}
        accelerate.dispatch_model(layers, places, main_device="cpu", offload_dir=tmp_path, force_hooks=True)
        assert layers[1][0].weight.is_meta
        assert api.execution_device(layers[1]) == torch.device("cpu")


def test_orig_mod() -> None:
    with changed("_orig_mod, _compiled_call_impl, _torchdynamo_orig_callable (torch)"):
        plain, inside, forward = (torch.nn.Linear(2, 2) for _ in range(3))
        wrapper: Any = torch.compile(plain)
        assert api.is_compiled_wrapper(wrapper)
        assert not api.is_compiled_wrapper(plain)
        assert not api.is_compiled(plain)
        inside.compile()
        forward.forward = torch.compile(forward.forward)  # type: ignore[method-assign]
        assert all(api.is_compiled(module) for module in (wrapper, inside, forward))


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────


def test_sdpa_attention_forward() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind(0)
    with changed("integrations.sdpa_attention.sdpa_attention_forward"):
        module = torch.nn.Module()
        out, weights = api.sdpa_attention_forward(module, query, key, value, None, scaling=0.5, is_causal=False)
        expected = ((query @ key.mT) * 0.5).softmax(-1) @ value
        assert weights is None
        torch.testing.assert_close(out, expected.transpose(1, 2))


def test_sdpa_mask() -> None:
    with changed("masking_utils.sdpa_mask"):
        padding = torch.tensor([[False, True, True]])
        mask = api.sdpa_mask(1, 3, 3, attention_mask=padding, allow_is_causal_skip=False)
        assert mask.dtype == torch.bool
        assert mask[0, 0, 1:].tolist() == [[False, True, False], [False, True, True]]


def test_all_attention_functions() -> None:
    with changed("modeling_utils.ALL_ATTENTION_FUNCTIONS"):
        assert api.ALL_ATTENTION_FUNCTIONS.get("sdpa") is api.sdpa_attention_forward
        assert api.ALL_ATTENTION_FUNCTIONS.get("eager") is None
        assert api.ALL_ATTENTION_FUNCTIONS.get("heal") is not None


# ── the steps of generate() ───────────────────────────────────────────────────────────────────────────


def test_the_steps_of_generate_give_what_generate_gives(model: Any, batch: dict[str, Any]) -> None:
    """`custom_generate`, `_prefill`, `prepare_inputs_for_generation` and `_update_model_kwargs_for_generation`."""
    name = "custom_generate, _prefill, prepare_inputs_for_generation or _update_model_kwargs_for_generation"

    def loop(model: Any, input_ids: Any, generation_config: Any, **arguments: Any) -> Any:
        assert {"logits_processor", "stopping_criteria"} <= set(arguments)
        arguments = {k: v for k, v in arguments.items() if k not in ("logits_processor", "stopping_criteria")}
        outputs, ids = api.prefill(model, input_ids, generation_config, arguments), input_ids
        for _ in range(4):
            ids = torch.cat([ids, outputs.logits[:, -1].argmax(-1)[:, None]], dim=1)
            arguments = api.updated_arguments(model, outputs, arguments)
            outputs = model(**api.inputs_of_token(model, ids, arguments), return_dict=True)
        return ids

    expected = model.generate(**batch, max_new_tokens=4)
    with changed(name):
        assert torch.equal(model.generate(**batch, max_new_tokens=4, custom_generate=loop), expected)


def test_prefill_has_the_arguments_that_are_given(model: Any) -> None:
    with changed("GenerationMixin._prefill"):
        names = parameters(model._prefill)
        assert names == ["input_ids", "generation_config", "model_kwargs", "is_first_iteration"]


def test_update_model_kwargs_for_generation(model: Any, batch: dict[str, Any]) -> None:
    with changed("GenerationMixin._update_model_kwargs_for_generation"):
        outputs = model(**batch, use_cache=True)
        after = api.updated_arguments(model, outputs, {"attention_mask": batch["attention_mask"]})
        assert after["attention_mask"].shape[1] == batch["input_ids"].shape[1] + 1
        assert after["past_key_values"] is outputs.past_key_values


def test_expand_multimodal_outputs(model: Any, batch: dict[str, Any]) -> None:
    with changed("GenerationMixin._expand_multimodal_outputs or the argument mm_encoder_outputs"):
        encoded = {"image": model.base_model.get_image_features(pixel_values=batch["pixel_values"])}
        twice = {name: batch[name].repeat_interleave(2, 0) for name in ("input_ids", "attention_mask")}
        outputs = api.repeated_encodings(model, batch["input_ids"], encoded, 2)
        logits = model(**twice, mm_encoder_outputs=outputs).logits
        torch.testing.assert_close(logits[::2], model(**batch).logits)
        torch.testing.assert_close(logits[1::2], logits[::2])


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_prepare_position_ids_for_generation(name: str) -> None:
    model = zoo.build(name)
    given = zoo.inputs(model, [zoo.Row(), zoo.Row(text_after=7)])
    seen: list[torch.Tensor] = []
    hook = model.register_forward_pre_hook(lambda *call: seen.append(call[2]["position_ids"]), with_kwargs=True)
    model.generate(**given, max_new_tokens=1)
    hook.remove()
    with changed("GenerationMixin._prepare_position_ids_for_generation"):
        before = getattr(model.base_model, "rope_deltas", None)
        assert torch.equal(api.prompt_positions(model, given), seen[0])
        assert getattr(model.base_model, "rope_deltas", None) is before


def test_generate_beam_decoder_only_output() -> None:
    with changed("generation.GenerateBeamDecoderOnlyOutput"):
        ids = torch.zeros(1, 3, dtype=torch.long)
        output = api.GenerateBeamDecoderOnlyOutput(sequences=ids, logits=None, beam_indices=ids, past_key_values=None)
        assert output.sequences is output.beam_indices is ids


def test_base_model_output_with_pooling(model: Any, batch: dict[str, Any]) -> None:
    with changed("modeling_outputs.BaseModelOutputWithPooling as the argument mm_encoder_outputs"):
        features = model.base_model.get_image_features(pixel_values=batch["pixel_values"]).pooler_output
        encoded = api.BaseModelOutputWithPooling(pooler_output=features)
        kept = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = model(**kept, mm_encoder_outputs={"image": encoded}).logits
        torch.testing.assert_close(logits, model(**batch).logits)


# ── layers of a cache ─────────────────────────────────────────────────────────────────────────────────


def filled(cache: Any, length: int) -> Any:
    for layer in range(2):
        states = torch.arange(length, dtype=torch.float32).view(1, 1, length, 1).expand(1, 2, length, 4).clone()
        cache.update(states, states, layer)
    return cache


def sliding(window: int = 4) -> Any:
    return transformers.MistralConfig(
        num_hidden_layers=2, hidden_size=8, num_attention_heads=2, num_key_value_heads=2, sliding_window=window
    )


def test_layer_class_to_replicate() -> None:
    with changed("Cache.layers, Cache.layer_class_to_replicate, Cache.offloading"):
        assert api.layer_classes(api.DynamicCache()) == {api.DynamicLayer}
        assert api.layer_classes(filled(api.DynamicCache(), 3)) == {api.DynamicLayer}
        windows = api.layer_classes(api.DynamicCache(config=sliding()))
        assert windows != {api.DynamicLayer}
        assert all(issubclass(kind, api.DynamicLayer) for kind in windows)
        assert not api.is_offloaded(api.DynamicCache())
        assert not issubclass(api.StaticLayer, api.DynamicLayer)
        assert issubclass(api.BaseQuantizedLayer, api.DynamicLayer)


def test_activate_past_recording() -> None:
    with changed("activate_past_recording, record_past of a sliding layer"):
        cache = api.DynamicCache(config=sliding())
        assert not api.is_recording(cache)
        api.record_past(cache)
        assert api.is_recording(cache)
        filled(cache, 9)
        for layer in cache.layers:
            api.crop_layer(layer, 2, record=False)
        assert not api.is_recording(cache)
        assert int(cache.get_seq_length()) == 7
        assert cache.layers[0].keys[0, 0, :, 0].tolist() == [4, 5, 6]  # the window less the next token


def test_cumulative_length() -> None:
    with changed("cumulative_length, cumulative_length_int of a static layer"):
        plain = transformers.LlamaConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
        for config, kind in ((plain, api.StaticLayer), (sliding(16), api.StaticSlidingWindowLayer)):
            cache = filled(transformers.StaticCache(config=config, max_cache_len=16), 6)
            assert api.layer_classes(cache) == {kind}
            for layer in cache.layers:
                api.crop_layer(layer, 2, record=False)
            assert int(cache.get_seq_length()) == 4
            assert not any(map(api.has_overwritten, cache.layers))
            later = torch.full((1, 2, 1, 4), 50.0)
            cache.update(later, later, 0)
            assert cache.layers[0].keys[0, 0, :5, 0].tolist() == [0, 1, 2, 3, 50]
        small = filled(transformers.StaticCache(config=sliding(4), max_cache_len=16), 6)
        assert all(map(api.has_overwritten, small.layers))


def test_cache_methods_that_change_rows() -> None:
    from heal.engine.caches import ROW_CHANGES

    with changed("Cache.reorder_cache, batch_select_indices, batch_repeat_interleave, crop, get_mask_sizes"):
        cache = filled(api.DynamicCache(), 3)
        assert all(len(parameters(getattr(cache, name))) == 1 for name in (*ROW_CHANGES, "crop"))
        cache.batch_repeat_interleave(3)
        cache.batch_select_indices(torch.tensor([0, 2]))
        cache.reorder_cache(torch.tensor([1, 0]))
        assert cache.layers[0].keys.shape == (2, 2, 3, 4)
        assert tuple(cache.get_mask_sizes(1, 0)) == (4, 0)


# ── nothing elsewhere ─────────────────────────────────────────────────────────────────────────────────


def foreign_privates(text: str) -> list[str]:
    """Imports of submodules of transformers, and underscore attributes of anything but self, cls or torch."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [f"import {a.name}" for a in node.names if a.name.startswith("transformers.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers."):
            found.append(f"from {node.module} import …")
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls") and owner.partition(".")[0] != "torch":
                found.append(f"{owner}.{node.attr}")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr", "delattr")
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
            and is_private(str(node.args[1].value))
            and ast.unparse(node.args[0]).partition(".")[0] != "torch"
        ):
            found.append(ast.unparse(node))
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_other_module_uses_private_parts() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != HOME]
    assert len(files) > 100
    found = {str(path.relative_to(SOURCE)): foreign_privates(path.read_text(encoding="utf-8")) for path in files}
    assert {name: uses for name, uses in found.items() if uses} == {}, f"name them in {HOME.name} and import them"


@pytest.mark.parametrize(
    "line",
    [
        "from transformers.cache_utils import Cache",
        "import transformers.masking_utils",
        "model._prefill(ids)",
        "self.model.config._attn_implementation",
        "getattr(config, '_name_or_path', '')",
        "hasattr(layer, '_hf_hook')",
    ],
)
def test_the_scan_finds(line: str) -> None:
    assert foreign_privates(line)


def test_the_scan_allows_what_is_public_or_ours() -> None:
    text = "from transformers import Cache\nself._x\ncls._y\ntorch._inductor.exc\nmodel.__class__\ngetattr(a, 'b')"
    assert foreign_privates(text) == []
