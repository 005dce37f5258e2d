"""Weights of others by name: families with Hugging Face's names, and a report of every name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models import references
from tests.models.test_pretrained import (
    GPT2,
    LLAMA,
    TOKENS,
    close,
    drawn,
    gpt2_shapes,
    llama_shapes,
    write,
)

import weft as wf
from weft import models, nn

Shapes = dict[str, tuple[int, ...]]
VIT = {
    "model_type": "vit", "image_size": 8, "patch_size": 4, "hidden_size": 12,
    "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "hidden_act": "gelu", "layer_norm_eps": 1e-6,
}  # fmt: skip
TEXT = {
    "vocab_size": 30, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 9, "hidden_act": "quick_gelu",
    "eos_token_id": 29,
}  # fmt: skip
VISION = {
    "image_size": 8, "patch_size": 4, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_act": "quick_gelu",
}  # fmt: skip
CLIP = {
    "model_type": "clip", "projection_dim": 10, "text_config": TEXT, "vision_config": VISION,
}  # fmt: skip
WHISPER = {
    "model_type": "whisper", "vocab_size": 23, "num_mel_bins": 5, "d_model": 12,
    "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 20,
    "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 28,
    "max_source_positions": 6, "max_target_positions": 9, "activation_function": "gelu",
    "scale_embedding": False,
}  # fmt: skip


def layers(names: dict[str, tuple[int, ...]]) -> Shapes:
    """Layers by name, each with a weight and a bias of its first size."""
    shapes: Shapes = {}
    for name, shape in names.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def vit_shapes() -> Shapes:
    named: dict[str, tuple[int, ...]] = {
        "vit.embeddings.patch_embeddings.projection": (12, 3, 4, 4), "vit.layernorm": (12,),
        "classifier": (5, 12),
    }  # fmt: skip
    for i in range(2):
        for name, shape in {
            "attention.attention.query": (12, 12), "attention.attention.key": (12, 12),
            "attention.attention.value": (12, 12), "attention.output.dense": (12, 12),
            "intermediate.dense": (20, 12), "output.dense": (12, 20), "layernorm_before": (12,),
            "layernorm_after": (12,),
        }.items():  # fmt: skip
            named[f"vit.encoder.layer.{i}.{name}"] = shape
    tables: Shapes = {
        "vit.embeddings.cls_token": (1, 1, 12), "vit.embeddings.position_embeddings": (1, 5, 12),
    }  # fmt: skip
    return layers(named) | tables


def clip_shapes() -> Shapes:
    named: dict[str, tuple[int, ...]] = {
        "text_model.final_layer_norm": (12,), "vision_model.pre_layrnorm": (16,),
        "vision_model.post_layernorm": (16,),
    }  # fmt: skip
    for at, count, width, hidden in (("text_model", 2, 12, 20), ("vision_model", 1, 16, 24)):
        for i in range(count):
            layer = f"{at}.encoder.layers.{i}"
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                named[f"{layer}.self_attn.{name}"] = (width, width)
            named |= {
                f"{layer}.mlp.fc1": (hidden, width), f"{layer}.mlp.fc2": (width, hidden),
                f"{layer}.layer_norm1": (width,), f"{layer}.layer_norm2": (width,),
            }  # fmt: skip
    return layers(named) | {
        "text_model.embeddings.token_embedding.weight": (30, 12),
        "text_model.embeddings.position_embedding.weight": (9, 12),
        "vision_model.embeddings.class_embedding": (16,),
        "vision_model.embeddings.patch_embedding.weight": (16, 3, 4, 4),
        "vision_model.embeddings.position_embedding.weight": (5, 16),
        "visual_projection.weight": (10, 16), "text_projection.weight": (10, 12),
        "logit_scale": (),
    }  # fmt: skip


def whisper_shapes() -> Shapes:
    named: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1": (12, 5, 3), "model.encoder.conv2": (12, 12, 3),
        "model.encoder.layer_norm": (12,), "model.decoder.layer_norm": (12,),
    }  # fmt: skip
    keys: Shapes = {}
    for part, hidden in (("encoder", 20), ("decoder", 28)):
        for i in range(2):
            at = f"model.{part}.layers.{i}"
            named |= {
                f"{at}.fc1": (hidden, 12), f"{at}.fc2": (12, hidden),
                f"{at}.final_layer_norm": (12,),
            }  # fmt: skip
            for kind in ("self_attn", "encoder_attn") if part == "decoder" else ("self_attn",):
                keys[f"{at}.{kind}.k_proj.weight"] = (12, 12)  # keys have no bias
                named[f"{at}.{kind}_layer_norm"] = (12,)
                for name in ("q_proj", "v_proj", "out_proj"):
                    named[f"{at}.{kind}.{name}"] = (12, 12)
    return layers(named) | keys | {
        "model.encoder.embed_positions.weight": (6, 12),
        "model.decoder.embed_positions.weight": (9, 12),
        "model.decoder.embed_tokens.weight": (23, 12), "proj_out.weight": (23, 12),
    }  # fmt: skip


def test_a_vit_of_random_weights_is_numpys(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = drawn(vit_shapes(), rng)
    loaded = models.load_pretrained(write(tmp_path, VIT, weights))
    image = rng.normal(size=(3, 8, 8)).astype(np.float32)
    plain = {name.removeprefix("vit."): array for name, array in weights.items()}
    close(loaded.net(wf.asarray(image[None]))[0], references.vit(plain, image, loaded.net.config))
    report = loaded.report
    assert report.is_complete
    assert report.used["vit.layernorm.weight"] == "layernorm.weight"
    assert set(report.used) == set(weights)
    assert "classifier.weight" not in report.renamed


@pytest.mark.parametrize("end", [29, 2])
def test_a_clip_of_random_weights_is_numpys(
    end: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    weights = drawn(clip_shapes(), rng)
    ids = {"text_model.embeddings.position_ids": np.arange(9)[None]}
    config = CLIP | {"text_config": TEXT | {"eos_token_id": end}}
    net, tokenizer = (loaded := models.load_pretrained(write(tmp_path, config, weights | ids)))
    assert tokenizer is None
    texts = np.array([[3, 7, 29, 1, 1], [29, 4, 4, 2, 0]])
    images = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    expected = [[references.clip(weights, t, i, net.config) for t in texts] for i in images]
    close(net(wf.asarray(texts), wf.asarray(images)), expected)
    assert loaded.report.unused == {"text_model.embeddings.position_ids": "ignored"}


def test_a_whisper_of_random_weights_is_numpys(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = drawn(whisper_shapes(), rng)
    net, _ = (loaded := models.load_pretrained(write(tmp_path, WHISPER, weights)))
    sound = rng.normal(size=(5, 12)).astype(np.float32)
    expected = references.whisper(weights, sound, TOKENS, net.config)
    close(net(wf.asarray(sound[None]), wf.asarray(TOKENS[None]))[0], expected)
    assert loaded.report.unused == {"proj_out.weight": "ignored"}


def test_a_qwen_of_random_weights_is_numpys(tmp_path: Path, rng: np.random.Generator) -> None:
    shapes = llama_shapes()
    for i in range(2):
        for name, size in (("q", 16), ("k", 8), ("v", 8)):
            shapes[f"model.layers.{i}.self_attn.{name}_proj.bias"] = (size,)
    weights = drawn(shapes, rng)
    more = {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 8}
    net, _ = models.load_pretrained(write(tmp_path, LLAMA | more, weights))
    close(net(wf.asarray(TOKENS[None]))[0], references.llama(weights, TOKENS, net.config))


def test_heads_of_a_third_qwen_are_normalised(tmp_path: Path, rng: np.random.Generator) -> None:
    shapes = llama_shapes()
    for i in range(2):
        for name in ("q_norm", "k_norm"):
            shapes[f"model.layers.{i}.self_attn.{name}.weight"] = (4,)
    weights = drawn(shapes, rng)
    net, _ = models.load_pretrained(write(tmp_path, LLAMA | {"model_type": "qwen3"}, weights))
    close(net(wf.asarray(TOKENS[None]))[0], references.llama(weights, TOKENS, net.config))


# --- any module ----------------------------------------------------------------------------------


class OwnBlock(nn.Module):
    """A layer of GPT-2 with linear layers, as a user writes it."""

    def __init__(self) -> None:
        self.norm = nn.LayerNorm(16)
        self.joint = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 3}, (3, 3)),
        ({"model_type": "mistral", "sliding_window": None}, ()),
        ({"model_type": "mistral", "sliding_window": 4096}, ()),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 3,
             "max_window_layers": 1},
            (None, 3),
        ),
        (
            {"model_type": "mistral", "sliding_window": 2,
             "layer_types": ["sliding_attention", "full_attention"]},
            (2, None),
        ),
    ],
    ids=["mistral", "no window", "wider than the context", "qwen", "layer types"],
)  # fmt: skip
def test_layers_with_a_window_see_no_further(
    more: dict[str, Any],
    windows: tuple[int | None, ...],
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    shapes = dict(llama_shapes())
    if more["model_type"] == "qwen2":
        for name, shape in llama_shapes().items():
            if any(f"{each}_proj.weight" in name for each in "qkv"):
                shapes[name.replace("weight", "bias")] = shape[:1]
    weights = drawn(shapes, rng)
    net, _ = models.load_pretrained(write(tmp_path, LLAMA | more, weights))
    assert net.config.windows == windows
    expected = references.llama(weights, TOKENS, net.config, windows)
    close(net(wf.asarray(TOKENS[None]))[0], expected)
    cache, rows = net.new_cache(1, 12), []
    for part in (TOKENS[:5], TOKENS[5:6], TOKENS[6:]):
        logits, cache = net(wf.asarray(part[None]), cache)
        rows.append(logits[0].detach().numpy())
    np.testing.assert_allclose(np.concatenate(rows), expected, rtol=1e-4, atol=1e-4)


def test_kinds_of_layers_that_are_not_all_named_are_refused(tmp_path: Path) -> None:
    more = {"model_type": "mistral", "sliding_window": 3, "layer_types": ["full_attention"]}
    with pytest.raises(wf.ArgumentError, match="layer_types does not say"):
        models.load_pretrained(write(tmp_path, LLAMA | more, {"x": np.ones(1, np.float32)}))


def test_names_are_replaced_and_matrices_transposed_as_asked(rng: np.random.Generator) -> None:
    weights = {
        name: array for name, array in drawn(gpt2_shapes(), rng).items()
        if name.startswith(("h.0.ln_1", "h.0.attn"))
    }  # fmt: skip
    net = OwnBlock()
    report = models.load_checkpoint(
        net,
        weights | {"h.0.attn.masked_bias": np.zeros(1, np.float32)},
        rename=[
            (r"^h\.0\.", ""),
            ("ln_1", "norm"),
            (r"attn\.c_attn", "joint"),
            (r"attn\.c_proj", "out"),
        ],
        transposed=r"c_\w+\.weight",
        ignored="masked_bias",
    )
    assert report.is_complete
    assert report.transposed == ("h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight")
    np.testing.assert_array_equal(
        net.out.weight.detach().numpy(), weights["h.0.attn.c_proj.weight"].T
    )
    np.testing.assert_array_equal(
        net.joint.weight.detach().numpy(), weights["h.0.attn.c_attn.weight"].T
    )
    assert report.used["h.0.ln_1.bias"] == "norm.bias"
    text = str(report)
    assert text.startswith("1 unused, 6 used")
    assert "h.0.attn.c_attn.weight  -> joint.weight, transposed" in " ".join(text.split("\n"))


def test_a_square_matrix_is_not_transposed_by_itself() -> None:
    net, square = nn.Linear(3, 3, bias=False), np.arange(9.0, dtype=np.float32).reshape(3, 3)
    models.load_checkpoint(net, {"weight": square})
    np.testing.assert_array_equal(net.weight.detach().numpy(), square)


@pytest.mark.parametrize("inside", [True, False])
def test_a_prefix_of_one_side_is_left_out(inside: bool) -> None:
    plain = {"weight": np.ones((2, 2), np.float32), "bias": np.zeros(2, np.float32)}
    net: Any = nn.Linear(2, 2)
    if inside:
        net, state = nn.ModuleDict({"encoder": net}), plain
    else:
        state = {f"encoder.{name}": array for name, array in plain.items()}
    report = models.load_checkpoint(net, state)
    assert len(report.renamed) == 2
    assert report.is_complete


def test_what_does_not_fit_is_listed_and_nothing_is_loaded() -> None:
    net = nn.Linear(2, 3)
    before = net.bias.detach().numpy().copy()
    state = {
        "weight": np.ones((2, 2), np.float32),
        "bias": np.full(3, 9, np.float32),
        "extra": before,
    }
    with pytest.raises(wf.ArgumentError, match=r"\(2, 2\) for weight \(3, 2\)") as error:
        models.load_checkpoint(net, state)
    assert "left over: extra" in error.value.problem
    np.testing.assert_array_equal(net.bias.detach().numpy(), before)
    del state["bias"]
    report = models.load_checkpoint(net, state, strict=False)
    assert report.missing == ("bias",)
    assert report.unused == {"extra": "no such name in the module"}
    assert list(report.mismatched) == ["weight"]
    assert report.used == {}


def test_a_file_and_a_folder_are_read(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = drawn(gpt2_shapes(), rng)
    folder = write(tmp_path, GPT2, weights)
    net = models.GPT2(models.GPTConfig.from_json(GPT2))
    assert models.load_checkpoint(net, folder).is_complete
    report = models.load_checkpoint(net, folder / "model.safetensors")
    assert set(report.used) == set(weights)
    np.testing.assert_array_equal(net.wte.weight.detach().numpy(), weights["wte.weight"])
