"""Good models made bad: fields of the parsed file changed at random, or bytes of it.

Blind mutations of bytes mostly stop at the parser. Those of fields get behind it: sizes, names,
operators, attributes, order and types that contradict each other.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from tests.hostile import spoilt

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

SEEDS = re.compile(
    r"^test_(lstm_defaults|loop11|loop13_seq|scan9_sum|if_seq|resize_upsample_scales_cubic$"
    r"|conv_with_strides_padding|slice$|sequence_map_add_2|qlinearconv|reshape_zero_dim|pad_|tile$"
    r"|edge_pad|constantofshape_float_ones|expand_dim_changed|gather_elements_0|onehot_with_axis"
    r"|maxpool_2d_ceil|convtranspose_output_shape|range_float_type_positive_delta_expanded"
    r"|layer_normalization_default_axis|attention_4d$|nllloss_NC$|einsum_sum|col2im_pads|top_k$"
    r"|split_variable_parts_1d_opset18|dft_axis$|gru_defaults|roialign_aligned_true|unique_.*axis$"
    r"|gridsample$|tfidfvectorizer_tf_only_bigrams_skip0|ai_onnx_ml_tree_ensemble_single_tree"
    r"|cast_FLOAT_to_FLOAT8E4M3FN|attention_3d_gqa_with_past|attention_4d_with_qk_matmul_softcap|dequantizelinear$|dequantizelinear_axis$|matmulinteger$|dequantizelinear_int4|nonmaxsuppression_two_batches)"
)
NUMBERS = [
    -(2**63), -(2**31), -5, -2, -1, 0, 1, 2, 3, 7, 1000, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1,
]  # fmt: skip
FRACTIONS = [0.0, -1.0, 1e30, -1e30, float("inf"), float("nan"), 1e-30, 0.5, 1e9]
OPERATORS = [
    "Add", "Reshape", "Conv", "Gather", "Loop", "If", "Scan", "Tile", "Expand", "ConstantOfShape",
    "Range", "Resize", "Pad", "OneHot", "Slice", "Concat", "LSTM", "TopK", "Identity", "Nothing",
    "SequenceAt", "MatMul", "Gemm", "DequantizeLinear", "Cast", "Attention", "NonZero",
    "StringSplit", "EyeLike",
]  # fmt: skip


def seed_models() -> list[Any]:
    """The backend tests that are spoilt."""
    from onnx.backend.test.loader import load_model_tests

    return [case for case in load_model_tests(kind="node") if SEEDS.search(case.name)]


def _pick(rng: np.random.Generator, items: Any) -> Any:
    return items[int(rng.integers(0, len(items)))]


def _graphs(graph: Any) -> list[Any]:
    inner = [
        each for node in graph.node for a in node.attribute if a.HasField("g") for each in [a.g]
    ]
    return [graph, *[deeper for each in inner for deeper in _graphs(each)]]


def _change_attribute(rng: np.random.Generator, graph: Any) -> None:
    attributes = [a for node in graph.node for a in node.attribute]
    if not attributes:
        return
    attribute = _pick(rng, attributes)
    if attribute.ints:
        attribute.ints[int(rng.integers(0, len(attribute.ints)))] = _pick(rng, NUMBERS)
        if rng.integers(0, 4) == 0:
            attribute.ints.append(_pick(rng, NUMBERS))
    elif attribute.floats:
        attribute.floats[0] = _pick(rng, FRACTIONS)
    elif attribute.HasField("i"):
        attribute.i = _pick(rng, NUMBERS)
    elif attribute.HasField("f"):
        attribute.f = _pick(rng, FRACTIONS)
    elif attribute.HasField("s"):
        attribute.s = _pick(rng, [b"", b"SAME_UPPER", b"linear", b"\xff\xfe", b"x" * 300])
    elif attribute.HasField("t"):
        _spoil_tensor(rng, attribute.t)
    if rng.integers(0, 10) == 0:
        attribute.type = _pick(rng, range(1, 14))


def _spoil_tensor(rng: np.random.Generator, tensor: Any) -> None:
    choice = rng.integers(0, 5)
    if choice == 0 and tensor.dims:
        tensor.dims[int(rng.integers(0, len(tensor.dims)))] = _pick(rng, NUMBERS)
    elif choice == 1:
        tensor.dims.append(_pick(rng, NUMBERS))
    elif choice == 2:
        tensor.data_type = _pick(rng, range(26))
    elif choice == 3:
        tensor.raw_data = rng.bytes(int(rng.integers(0, 64)))
    else:
        tensor.data_location = 1
        entry = tensor.external_data.add()
        entry.key = _pick(rng, ["location", "offset", "length"])
        entry.value = _pick(rng, ["../../etc/passwd", "/etc/passwd", "-1", "9" * 30, "x", ""])


def _change_names(rng: np.random.Generator, graph: Any) -> None:
    names = [n for node in graph.node for n in [*node.input, *node.output]] + ["", "nothing"]
    node = _pick(rng, graph.node)
    target = node.input if rng.integers(0, 2) and node.input else node.output
    if target:
        target[int(rng.integers(0, len(target)))] = _pick(rng, names)


def _change_nodes(rng: np.random.Generator, graph: Any) -> None:
    node, choice = _pick(rng, graph.node), rng.integers(0, 5)
    if choice == 0:
        node.op_type = _pick(rng, OPERATORS)
    elif choice == 1:
        graph.node.add().CopyFrom(node)
    elif choice == 2:
        graph.node.insert(0, node)
    elif choice == 3:
        node.domain = _pick(rng, ["", "ai.onnx.ml", "x", "com.microsoft"])
    elif node.input:
        del node.input[-1]


def _change_types(rng: np.random.Generator, graph: Any) -> None:
    infos = [*graph.input, *graph.output]
    if not infos:
        return
    info = _pick(rng, infos)
    if rng.integers(0, 2) and info.type.HasField("tensor_type"):
        info.type.tensor_type.elem_type = _pick(rng, range(26))
    elif info.type.tensor_type.shape.dim:
        _pick(rng, info.type.tensor_type.shape.dim).dim_value = _pick(rng, NUMBERS)
    else:
        graph.input.remove(_pick(rng, graph.input)) if graph.input else None


def mutate(rng: np.random.Generator, content: bytes) -> bytes:
    """The bytes of a model after one mutation, or a few."""
    import onnx

    if rng.integers(0, 3) == 0:
        return spoilt(rng, content)
    model = onnx.ModelProto.FromString(content)
    changes = [_change_attribute, _change_names, _change_nodes, _change_types]
    for _ in range(int(rng.integers(1, 4))):
        graph = _pick(rng, _graphs(model.graph))
        if graph.node:
            _pick(rng, changes)(rng, graph)
    if graph.initializer and rng.integers(0, 2):
        _spoil_tensor(rng, _pick(rng, graph.initializer))
    if rng.integers(0, 8) == 0:
        model.opset_import[0].version = _pick(rng, NUMBERS)
    return bytes(model.SerializeToString())


def spoil_input(rng: np.random.Generator, array: Any) -> Any:
    """An input whose numbers are others, where they may decide sizes."""
    if rng.integers(0, 4) or array.dtype.kind not in "iuf" or not array.size:
        return array
    changed = array.copy()
    source = NUMBERS if array.dtype.kind in "iu" else FRACTIONS
    with np.errstate(all="ignore"):
        changed.reshape(-1)[int(rng.integers(0, array.size))] = np.array(_pick(rng, source)).astype(
            array.dtype
        )
    return changed


def inputs_of(case: Any) -> list[Any]:
    """The stored inputs of a backend test, as arrays."""
    import onnx

    folder = Path(case.model_dir) / "test_data_set_0"
    files = sorted(folder.glob("input_*.pb"), key=lambda path: int(path.stem.split("_")[-1]))
    values = []
    for path in files:
        try:
            values.append(
                onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
            )
        except Exception:  # a sequence, or an optional value
            values.append([np.ones(2, np.float32)])
    return values
