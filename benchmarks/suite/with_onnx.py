"""ONNX Runtime: a graph of nodes over the task's weights, all optimisations of the graph on."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from suite.task import Arrays, Step, Task

OPERATORS = 21
"""The version of the operators' meaning."""
OWN = "com.microsoft"
"""The domain of the runtime's own operators, which its exporters write."""
TRIED = 30
"""Calls with which the two ways to run a session are compared."""


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

    def norm(self, name: str, x: str, epsilon: float = 1e-5) -> str:
        """Layer norm over the last axis."""
        operands = x, f"{name}.weight", f"{name}.bias"
        return str(self.add("LayerNormalization", *operands, axis=-1, epsilon=epsilon))

    def split(self, x: str, parts: int) -> list[str]:
        """Equal parts of the last axis."""
        found: list[str] = self.add("Split", x, outputs=parts, axis=-1, num_outputs=parts)
        return found

    def reshape(self, x: str, *shape: int) -> str:
        """The same elements in another shape."""
        name = self.constant("shape" + "x".join(map(str, shape)), np.array(shape))
        return str(self.add("Reshape", x, name))

    def sum(self, x: str, axis: int, keep: bool = False) -> str:
        """The sum over one axis."""
        axes = self.constant(f"axis{axis}", np.array([axis]))
        return str(self.add("ReduceSum", x, axes, keepdims=int(keep)))

    def session(self, inputs: Arrays, results: Sequence[str]) -> Any:
        """The graph, optimised, for inputs of these shapes."""
        import onnxruntime
        from onnx import helper, numpy_helper

        kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in inputs.items()}
        graph = helper.make_graph(
            self.nodes,
            "workload",
            [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in inputs.items()],
            [helper.make_empty_tensor_value_info(name) for name in results],
            [numpy_helper.from_array(array, name) for name, array in self._used().items()],
        )
        versions = [helper.make_opsetid("", OPERATORS), helper.make_opsetid(OWN, 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        providers = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers)

    def running(self, result: str) -> Step:
        """The session on the task's data: by `run` or with bound memory, whichever is faster."""
        data = self.task.data
        session = self.session(data, [result])
        ways = [lambda: session.run([result], data)[0], bound(session, data, result)]
        return min(ways, key=_best)

    def _used(self) -> Arrays:
        read = {name for node in self.nodes for name in node.input}
        return {name: array for name, array in self.constants.items() if name in read}


def bound(session: Any, data: Mapping[str, np.ndarray], result: str) -> Step:
    """The session with its inputs and its result in memory of their own."""
    import onnxruntime

    value = onnxruntime.OrtValue.ortvalue_from_numpy
    binding = session.io_binding()
    for name, array in data.items():
        binding.bind_ortvalue_input(name, value(array))
    place = value(session.run([result], data)[0])
    binding.bind_ortvalue_output(result, place)

    def step() -> Any:
        session.run_with_iobinding(binding)
        return place

    return step


def _best(step: Step) -> float:
    times = []
    for _ in range(TRIED):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times)


def as_numpy(value: Any) -> np.ndarray:
    """What a step returned."""
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
