"""Keras on TensorFlow: a model of layers, and one `tf.function`, with XLA or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from suite.task import Step, Task


def assign(layer: Any, *arrays: np.ndarray) -> None:
    """Give a built layer its weights."""
    layer.set_weights([np.asarray(array) for array in arrays])


def linear(task: Task, name: str, activation: str | None = None) -> Callable[[Any], Any]:
    """A dense layer that, at its first call, takes the weights of that name."""
    import keras

    weight, bias = task.weights[f"{name}.weight"], task.weights[f"{name}.bias"]
    layer = keras.layers.Dense(weight.shape[0], activation=activation)
    layer.build((None, weight.shape[1]))
    assign(layer, weight.T, bias)
    return layer


def norm(task: Task, name: str, epsilon: float = 1e-5) -> Callable[[Any], Any]:
    """Layer norm over the last axis, with the weights of that name."""
    import keras

    weight, bias = task.weights[f"{name}.weight"], task.weights[f"{name}.bias"]
    layer = keras.layers.LayerNormalization(epsilon=epsilon)
    layer.build((None, None, *weight.shape))
    assign(layer, weight, bias)
    return layer


def embedding(task: Task, name: str) -> Callable[[Any], Any]:
    """A table of vectors with the weights of that name."""
    import keras

    weight = task.weights[f"{name}.weight"]
    layer = keras.layers.Embedding(*weight.shape)
    layer.build((None,))
    assign(layer, weight)
    return layer


def training(task: Task, model: Any, optimizer: Any, loss: Callable[..., Any]) -> Step:
    """One step of a model: tape, gradients, update; compiled by XLA if the task asks for it."""
    import tensorflow as tf

    data = [tf.constant(array) for array in task.data.values()]
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(jit_compile=task.compiled)
    def program(*data: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(model, *data)
        gradients = [_summed(task, g) for g in tape.gradient(value, variables)]
        optimizer.apply(gradients, variables)
        return value

    return lambda: program(*data).numpy()


def _summed(task: Task, gradient: Any) -> Any:
    """A table's gradient with each row once, as the squares in Keras' optimisers need it."""
    import tensorflow as tf

    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if task.compiled:  # XLA has no `unique`
        return tf.convert_to_tensor(gradient)
    rows, places = tf.unique(tf.reshape(gradient.indices, [-1]))
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def applying(task: Task, model: Any) -> Step:
    """The forward pass alone."""
    return calling(task, lambda *data: model(*data, training=False), *task.data.values())


def calling(task: Task, function: Callable[..., Any], *arrays: np.ndarray) -> Step:
    """A function on its operands as a graph."""
    import tensorflow as tf

    operands = [tf.constant(array) for array in arrays]
    program = tf.function(function, jit_compile=task.compiled)
    return lambda: program(*operands).numpy()


def classification(model: Any, x: Any, y: Any) -> Any:
    """Cross entropy of a classifier."""
    import tensorflow as tf

    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
    return tf.reduce_mean(losses)


def as_numpy(value: Any) -> np.ndarray:
    """What a step returned."""
    return np.asarray(value)
