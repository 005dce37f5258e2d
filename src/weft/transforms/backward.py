"""`.backward()`: reverse mode as PyTorch has it, with gradients accumulated in leaves.

>>> import weft as wf
>>> w = wf.tensor([1.0, 2.0], requires_grad=True)
>>> (w * w).sum().backward()
>>> w.grad.tolist()
[2.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core.arrays import HostArray
from weft.core.errors import ArgumentTypeError, GradientError, ShapeError
from weft.ir.reverse import backpropagate, filled_like, recording
from weft.ir.tape import LEAF_HOOKS, Hook, Leaf, is_own_leaf
from weft.ir.tape_order import reachable_nodes
from weft.ir.tensor import (
    Tensor,
    Traced,
    about_to_write,
    grad_mode,
    gradient_touched,
    wrap,
)
from weft.ops.operands import as_tensor

__all__ = ["enable_grad", "is_grad_enabled", "no_grad"]


def no_grad() -> recording:
    """Record nothing for `.backward()` inside; also a decorator.

    >>> import weft as wf
    >>> x = wf.tensor(1.0, requires_grad=True)
    >>> with wf.no_grad():
    ...     (x * 2).requires_grad
    False
    """
    return recording(False, asked=True)


def enable_grad() -> recording:
    """Record for `.backward()` inside, even within `no_grad`.

    >>> import weft as wf
    >>> x = wf.tensor(1.0, requires_grad=True)
    >>> with wf.no_grad(), wf.enable_grad():
    ...     (x * 2).requires_grad
    True
    """
    return recording(True, asked=True)


def is_grad_enabled() -> bool:
    """Whether operations are recorded for `.backward()`.

    >>> import weft as wf
    >>> with wf.no_grad():
    ...     wf.is_grad_enabled()
    False
    """
    return grad_mode.enabled


def backward(
    tensor: Tensor,
    gradient: Tensor | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add the derivative of this tensor to `.grad` of every leaf it was computed from.

    gradient: the weight of each element, needed unless the tensor has one element.
    retain_graph: keep the tape for another backward. create_graph: make the gradients
    differentiable themselves.
    """
    if tensor._node is None:
        raise _no_tape("backward", tensor)
    seed = _first_cotangent(tensor, gradient)
    keep = create_graph if retain_graph is None else retain_graph
    order = reachable_nodes([tensor._node])
    traced = grad_mode.enabled and isinstance(tensor._value, Traced)
    with recording(create_graph or traced):  # an outer tape may lie behind a trace
        seeds = [(tensor._node, seed)]
        cotangents = backpropagate(order, seeds, release=not keep, attach=create_graph)
        for node in order:
            handle = node.handle() if type(node) is Leaf and node.handle is not None else None
            if handle is not None:
                cotangent = cotangents.get(node)
                found_or_zero = filled_like(handle, 0) if cotangent is None else cotangent
                _accumulate(handle, found_or_zero, create_graph)


def _accumulate(handle: Tensor, cotangent: Tensor, attach: bool) -> None:
    gradient_touched(handle, written=False)
    total = cotangent if handle._grad is None else handle._grad + cotangent
    about_to_write(handle)
    gradient_touched(handle, written=True)
    handle._grad = total if attach else wrap(total._value)


def _first_cotangent(tensor: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        if tensor.size != 1 or tensor.dtype.is_complex:
            raise _not_scalar(tensor)
        return filled_like(tensor, 1)
    gradient = as_tensor("backward", gradient, "gradient")
    given, own = gradient._value, tensor._value
    is_same = type(given) is type(own) is HostArray and given.dtype is own.dtype
    if is_same and given.shape == own.shape:
        return gradient
    if gradient.type != tensor.type:
        raise ShapeError(
            "backward",
            "the gradient has another type than the tensor",
            expected=f"gradient: {tensor.type}",
            got={"gradient": gradient},
            fix="pass a gradient of the tensor's shape and dtype, such as wf.ones_like(x)",
        )
    return gradient


def _no_tape(op: str, tensor: Tensor) -> GradientError:
    return GradientError(
        op,
        "the tensor was not computed from anything that requires a gradient",
        expected="a tensor computed, outside no_grad, from leaves with requires_grad=True",
        got={"x": tensor},
        fix="create the leaf with wf.tensor(..., requires_grad=True)",
    )


def _not_scalar(tensor: Tensor) -> GradientError:
    return GradientError(
        "backward",
        "the tensor is not a real scalar",
        expected="one real element, or a gradient argument that weighs the elements",
        got={"x": tensor},
        fix="reduce it first: x.sum().backward(), or x.backward(wf.ones_like(x))",
    )


def get_requires_grad(tensor: Tensor) -> bool:
    """Whether operations on this tensor are recorded for `.backward()`."""
    return tensor._node is not None


def set_requires_grad(tensor: Tensor, value: bool) -> None:
    """Make the tensor a leaf, or stop it from being one."""
    if bool(value) == (tensor._node is not None):
        return
    if not value and type(tensor._node) is not Leaf:
        raise GradientError(
            "requires_grad",
            "only a leaf can be told not to require a gradient",
            expected="a tensor made by wf.tensor(..., requires_grad=True)",
            got={"x": tensor},
            fix="take the value without its history: x.detach()",
        )
    if value:
        check_differentiable("requires_grad", tensor)
        tensor._origin = None  # a leaf is a tensor of its own: an optimizer may write to it
    tensor._node = Leaf(tensor) if value else None


def check_differentiable(op: str, tensor: Tensor) -> None:
    """Refuse dtypes that have no derivatives."""
    if not tensor.dtype.is_inexact:
        raise GradientError(
            op,
            "only floating-point and complex tensors have gradients",
            expected="a float or complex dtype",
            got={"x": tensor},
            fix='convert it first: x.astype("float32")',
        )


def requires_grad_(tensor: Tensor, value: bool = True) -> Tensor:
    """Set `requires_grad` and return the tensor itself."""
    set_requires_grad(tensor, value)
    return tensor


def is_leaf(tensor: Tensor) -> bool:
    """Whether no recorded operation made this tensor."""
    return tensor._node is None or is_own_leaf(tensor)


def get_grad(tensor: Tensor) -> Tensor | None:
    """The gradient that `.backward()` accumulated, or None."""
    gradient_touched(tensor, written=False)
    return tensor._grad


def set_grad(tensor: Tensor, value: Tensor | None) -> None:
    """Replace the accumulated gradient; None clears it."""
    if value is not None:
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(
                "grad",
                "a gradient is a tensor or None",
                expected=f"{tensor.type} or None",
                got={"grad": value},
                fix="clear it with x.grad = None",
            )
        if value.type != tensor.type:
            raise ShapeError(
                "grad",
                "the gradient has another type than the tensor",
                expected=f"grad: {tensor.type}",
                got={"grad": value},
                fix="assign a tensor of the same shape and dtype, or None",
            )
    about_to_write(tensor)
    gradient_touched(tensor, written=True)
    tensor._grad = value


def register_hook(tensor: Tensor, hook: Hook) -> Callable[[], None]:
    """Call `hook(gradient)` when this tensor's gradient is known; a result replaces it.

    Returns a function that removes the hook.
    """
    node = tensor._node
    if node is None:
        raise _no_tape("register_hook", tensor)
    if node.hooks is None:
        node.hooks = []
    hooks: list[Hook] = node.hooks
    hooks.append(hook)
    LEAF_HOOKS.count += type(node) is Leaf

    def remove() -> None:
        if hook in hooks:
            hooks.remove(hook)
            LEAF_HOOKS.count += type(node) is Leaf

    return remove


def retain_grad(tensor: Tensor) -> None:
    """Keep the gradient of a tensor that is not a leaf in its `.grad`, too."""
    if not is_leaf(tensor):

        def keep(gradient: Tensor) -> None:
            _accumulate(tensor, gradient, attach=True)

        register_hook(tensor, keep)
