"""ONNX Runtime: a graph of nodes over the task's weights."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from suite.task import Step, Task

OPERATORS = 21
"""The version of the operators' meaning."""


class Builder:
    """Nodes in order; names of values are strings, those of weights are the task's."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.nodes: list[Any] = []
        self.constants = dict(task.weights)

    def add(self, kind: str, *operands: str, outputs: int = 1, **options: Any) -> Any:
        """A node; the name of its result, or of its results."""
        from onnx import helper

        names = [f"v{len(self.nodes)}.{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(operands), names, **options))
        return names[0] if outputs == 1 else names

    def constant(self, name: str, array: Any) -> str:
        """A named constant."""
        self.constants[name] = np.asarray(array)
        return name

    def turned(self, name: str) -> str:
        """A weight transposed, once and for all."""
        weight = np.ascontiguousarray(self.constants[name].T)
        return self.constant(f"{name}.turned", weight)

    def linear(self, name: str, x: str) -> str:
        """x Wᵀ + b."""
        product = self.add("MatMul", x, self.turned(f"{name}.weight"))
        return str(self.add("Add", product, f"{name}.bias"))

    def norm(self, name: str, x: str) -> str:
        """Layer norm over the last axis."""
        operands = x, f"{name}.weight", f"{name}.bias"
        return str(self.add("LayerNormalization", *operands, axis=-1, epsilon=1e-5))

    def split(self, x: str, parts: int) -> list[str]:
        """Equal parts of the last axis."""
        found: list[str] = self.add("Split", x, outputs=parts, axis=-1, num_outputs=parts)
        return found

    def running(self, result: str) -> Step:
        """A session over the graph."""
        import onnxruntime
        from onnx import helper, numpy_helper

        data = self.task.data
        kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in data.items()}
        graph = helper.make_graph(
            self.nodes,
            "workload",
            [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in data.items()],
            [helper.make_empty_tensor_value_info(result)],
            [numpy_helper.from_array(array, name) for name, array in self._used().items()],
        )
        version = helper.make_opsetid("", OPERATORS)
        model = helper.make_model(graph, opset_imports=[version], ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers)
        return lambda: session.run([result], data)[0]

    def _used(self) -> dict[str, np.ndarray]:
        read = {name for node in self.nodes for name in node.input}
        return {name: array for name, array in self.constants.items() if name in read}


def as_numpy(value: Any) -> np.ndarray:
    """What a step returned."""
    return np.asarray(value)
