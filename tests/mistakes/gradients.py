"""Derivatives."""

# ruff: noqa: ANN001, ANN202

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import (
    ArgumentError,
    ArgumentTypeError,
    GradientError,
    ShapeError,
    UnsupportedError,
)

FAMILY: Family = []


@mistake(
    FAMILY,
    "An integer tensor that requires a gradient",
    GradientError,
    "tensor",
    problem="int64 has no derivatives",
    expected="a floating-point or complex dtype with requires_grad=True",
    got="data: i64[3]",
    fix='wf.tensor(data, dtype="float32", requires_grad=True)',
)
def integer_requires_grad() -> None:
    wf.tensor([1, 2, 3], requires_grad=True)


@mistake(
    FAMILY,
    "A backward from several elements",
    GradientError,
    "backward",
    problem="the tensor is not a real scalar",
    expected="one real element, or a gradient argument that weighs the elements",
    got="x: f32[2]",
    fix="reduce it first: x.sum().backward(), or x.backward(wf.ones_like(x))",
)
def backward_not_scalar() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    (w * w).backward()


@mistake(
    FAMILY,
    "A second backward over the same tape",
    GradientError,
    "backward",
    problem="the tape was freed by an earlier backward",
    expected="one backward over a tape, or retain_graph=True in the earlier ones",
    got="operation: reduce_sum",
    fix="call loss.backward(retain_graph=True) first, or compute the loss again",
)
def backward_twice() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    loss = (w * w).sum()
    loss.backward()
    loss.backward()


@mistake(
    FAMILY,
    "A backward from what requires no gradient",
    GradientError,
    "backward",
    problem="the tensor was not computed from anything that requires a gradient",
    expected="a tensor computed, outside no_grad, from leaves with requires_grad=True",
    got="x: f32[]",
    fix="create the leaf with wf.tensor(..., requires_grad=True)",
)
def backward_nothing() -> None:
    x = wf.tensor([1.0, 2.0])
    (x * x).sum().backward()


@mistake(
    FAMILY,
    "A backward from what no_grad left out",
    GradientError,
    "backward",
    problem="the tensor was not computed from anything that requires a gradient",
    expected="a tensor computed, outside no_grad, from leaves with requires_grad=True",
    got="x: f32[]",
    fix="create the leaf with wf.tensor(..., requires_grad=True)",
)
def backward_no_grad() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    with wf.no_grad():
        loss = (w * w).sum()
    loss.backward()


@mistake(
    FAMILY,
    "A backward with a gradient of another shape",
    ShapeError,
    "backward",
    problem="the gradient has another type than the tensor",
    expected="gradient: f32[2]",
    got="gradient: f32[3]",
    fix="pass a gradient of the tensor's shape and dtype, such as wf.ones_like(x)",
)
def backward_gradient_shape() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    (w * w).backward(wf.ones(3))


@mistake(
    FAMILY,
    "A backward with a list for a gradient",
    ArgumentTypeError,
    "backward",
    problem="gradient is not a tensor",
    expected="a tensor, a NumPy array or a number",
    got="gradient: [1.0, 1.0]",
    fix="convert it first: wf.tensor(gradient)",
)
def backward_gradient_list() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    (w * w).backward([1.0, 1.0])


@mistake(
    FAMILY,
    "A leaf updated in place while recording",
    GradientError,
    "-=",
    problem="a leaf that requires a gradient was written to",
    expected="updates of leaves inside wf.no_grad()",
    got="x: f32[2]",
    fix="indent the line that writes under: with wf.no_grad():",
)
def in_place_leaf() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    w -= 0.1


@mistake(
    FAMILY,
    "A leaf written to while recording",
    GradientError,
    "setitem",
    problem="a leaf that requires a gradient was written to",
    expected="updates of leaves inside wf.no_grad()",
    got="x: f32[2]",
    fix="indent the line that writes under: with wf.no_grad():",
)
def written_leaf() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    w[0] = 0.0


@mistake(
    FAMILY,
    "A gradient of another shape",
    ShapeError,
    "grad",
    problem="the gradient has another type than the tensor",
    expected="grad: f32[2]",
    got="grad: f32[3]",
    fix="assign a tensor of the same shape and dtype, or None",
)
def grad_shape() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    w.grad = wf.zeros(3)


@mistake(
    FAMILY,
    "A gradient that is a number",
    ArgumentTypeError,
    "grad",
    problem="a gradient is a tensor or None",
    expected="f32[2] or None",
    got="grad: 0",
    fix="clear it with x.grad = None",
)
def grad_number() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    w.grad = 0


@mistake(
    FAMILY,
    "A result told not to require a gradient",
    GradientError,
    "requires_grad",
    problem="only a leaf can be told not to require a gradient",
    expected="a tensor made by wf.tensor(..., requires_grad=True)",
    got="x: f32[2]",
    fix="take the value without its history: x.detach()",
)
def not_a_leaf() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    y = w * 2
    y.requires_grad = False


@mistake(
    FAMILY,
    "A hook on a tensor without a gradient",
    GradientError,
    "register_hook",
    problem="the tensor was not computed from anything that requires a gradient",
    expected="a tensor computed, outside no_grad, from leaves with requires_grad=True",
    got="x: f32[3]",
    fix="create the leaf with wf.tensor(..., requires_grad=True)",
)
def hook_without_tape() -> None:
    wf.ones(3).register_hook(print)


@mistake(
    FAMILY,
    "The gradient of a function with several results",
    GradientError,
    "grad",
    problem="the function does not return a real scalar",
    expected="one floating-point tensor without axes",
    got="result: f32[3]",
    fix="reduce the result, for example .sum() or .mean(), or use wf.jacobian",
)
def grad_not_scalar() -> None:
    wf.grad(wf.sin)(wf.ones(3))


@mistake(
    FAMILY,
    "The gradient in an argument that is not there",
    ArgumentError,
    "grad",
    problem="there is no argument at that position",
    expected="argnums from 0 to 0",
    got="argnums: 1",
    fix="argnums=0 for the first argument",
)
def grad_argnums() -> None:
    wf.grad(lambda x: x.sum(), argnums=1)(wf.ones(3))


@mistake(
    FAMILY,
    "The gradient in an integer argument",
    GradientError,
    "grad",
    problem="only floating-point and complex tensors have gradients",
    expected="a float or complex dtype",
    got="x: i64[]",
    fix='convert it first: x.astype("float32")',
)
def grad_integer() -> None:
    wf.grad(lambda n: n * 2.0)(wf.tensor(3))


@mistake(
    FAMILY,
    "A gradient called without arguments",
    ArgumentError,
    "grad",
    problem="there is no argument at that position",
    expected="a positional argument",
    got="argnums: 0",
    fix="call it with an argument",
)
def grad_no_arguments() -> None:
    wf.grad(lambda: wf.ones(3).sum())()


@mistake(
    FAMILY,
    "The gradient of a function that returns text",
    ArgumentTypeError,
    "grad",
    problem="result is not a tensor",
    expected="a tensor, a NumPy array or a number",
    got="result: 'loss tensor(1., dtype=float32, device=cpu, requires_grad=True)'",
    fix="convert it to a number first: float(result)",
)
def grad_text() -> None:
    wf.grad(lambda x: f"loss {x}")(wf.tensor(1.0))


@mistake(
    FAMILY,
    "The gradient of a tensor instead of a function",
    ArgumentTypeError,
    "grad",
    problem="f is not a function",
    expected="a function",
    got="f: f32[]",
    fix="wf.grad(lambda x: ...)",
)
def grad_of_tensor() -> None:
    loss = wf.tensor(2.0)
    wf.grad(loss)


@mistake(
    FAMILY,
    "has_aux=True, and no pair returned",
    ArgumentTypeError,
    "grad",
    problem="with has_aux=True the function returns a pair",
    expected="(result, aux)",
    got="result: f32[]",
    fix="return loss, aux",
)
def aux_missing() -> None:
    wf.grad(lambda x: (x * x).sum(), has_aux=True)(wf.ones(3))


@mistake(
    FAMILY,
    "Fewer tangents than primals",
    ArgumentError,
    "jvp",
    problem="primals and tangents have different structures",
    expected="(*, *)",
    got="tangents: (*,)",
    fix="pass one tangent for each primal: wf.jvp(f, (x,), (t,))",
)
def jvp_structure() -> None:
    wf.jvp(wf.multiply, (wf.tensor(2.0), wf.tensor(3.0)), (wf.tensor(1.0),))


@mistake(
    FAMILY,
    "A tangent of another shape",
    ShapeError,
    "jvp",
    problem="the tangent has another type than its primal",
    expected="f32[3]",
    got="tangent: f32[2]",
    fix="a tangent of the same type: wf.ones((3,), dtype='float32')",
)
def jvp_type() -> None:
    wf.jvp(wf.sin, (wf.ones(3),), (wf.ones(2),))


@mistake(
    FAMILY,
    "Primals that are not in a tuple",
    ArgumentTypeError,
    "jvp",
    problem="primals are not in a tuple",
    expected="one tuple for the primals, one for the tangents",
    got="primals: f32[]",
    fix="wf.jvp(f, (x,), (t,))",
)
def jvp_not_tuple() -> None:
    wf.jvp(wf.sin, wf.tensor(2.0), wf.tensor(1.0))


@mistake(
    FAMILY,
    "A cotangent of another shape",
    ShapeError,
    "vjp",
    problem="the cotangent has another type than the function's result",
    expected="f32[3]",
    got="cotangent: f32[2]",
    fix="a cotangent of the same type: wf.ones((3,), dtype='float32')",
)
def vjp_type() -> None:
    _, pullback = wf.vjp(wf.sin, wf.ones(3))
    pullback(wf.ones(2))


@mistake(
    FAMILY,
    "A cotangent of another structure",
    ArgumentError,
    "vjp",
    problem="the cotangent has another structure than the result",
    expected="(*, *)",
    got="cotangent: *",
    fix="pass one cotangent for each tensor that the function returns",
)
def vjp_structure() -> None:
    _, pullback = wf.vjp(lambda x: (x, 2 * x), wf.ones(3))
    pullback(wf.ones(3))


@mistake(
    FAMILY,
    "An unknown mode",
    ArgumentError,
    "jacobian",
    problem="unknown mode",
    expected='"reverse" or "forward"',
    got="mode: backward",
    fix='wf.jacobian(f, mode="reverse")',
)
def jacobian_mode() -> None:
    wf.jacobian(wf.sin, mode="backward")


@mistake(
    FAMILY,
    "A function of one's own without a derivative",
    GradientError,
    "clipped",
    problem="the function has no derivative of its own",
    expected="a rule given with @f.jvp or @f.vjp",
    got="function: clipped",
    fix="@clipped.jvp before the first call",
)
def no_rule() -> None:
    @wf.custom_derivative
    def clipped(x):
        return wf.clip(x, -1.0, 1.0)

    clipped(wf.ones(3))


@mistake(
    FAMILY,
    "A rule for reverse mode, used in forward mode",
    GradientError,
    "jvp",
    problem="double has a derivative for reverse mode only",
    expected="a rule for forward mode",
    got="function: double",
    fix="give one with @f.jvp",
)
def reverse_only() -> None:
    @wf.custom_derivative
    def double(x):
        return 2 * x

    @double.vjp
    def double_vjp(x):
        return 2 * x, lambda ct: 2 * ct

    wf.jvp(double, (wf.tensor(1.0),), (wf.tensor(1.0),))


@mistake(
    FAMILY,
    "The derivative of an operation that has none",
    UnsupportedError,
    "nextafter",
    problem="nextafter walks over representable numbers: it has no derivative",
    expected="an operation with a derivative",
    got="operation: nextafter",
    fix="compute it from other operations, or do without: wf.stop_gradient(x)",
)
def no_derivative() -> None:
    wf.grad(lambda x: wf.nextafter(x, wf.tensor(2.0)))(wf.tensor(1.0))


@mistake(
    FAMILY,
    "The derivative of an operation that has none, by backward",
    UnsupportedError,
    "nextafter",
    problem="nextafter walks over representable numbers: it has no derivative",
    expected="an operation with a derivative",
    got="operation: nextafter",
    fix="compute it from other operations, or do without: wf.stop_gradient(x)",
)
def no_derivative_backward() -> None:
    x = wf.tensor(1.0, requires_grad=True)
    wf.nextafter(x, wf.tensor(2.0)).backward()


@mistake(
    FAMILY,
    "A rule of one's own that returns a wrong shape",
    GradientError,
    "double",
    problem="the rule returns a cotangent that does not fit",
    expected="one cotangent for each of: f32[3]",
    got="returned: f32[]",
    fix="return a tensor of the same shape and dtype for each, or None for zero",
)
def wrong_rule() -> None:
    @wf.custom_derivative
    def double(x):
        return 2 * x

    @double.vjp
    def double_vjp(x):
        return 2 * x, lambda ct: ct.sum()

    wf.grad(lambda x: double(x).sum())(wf.ones(3))


@mistake(
    FAMILY,
    "A checkpoint of a tensor instead of a function",
    ArgumentTypeError,
    "checkpoint",
    problem="f is not a function",
    expected="a function",
    got="f: f32[3]",
    fix="wf.checkpoint(lambda x: ...)",
)
def checkpoint_tensor() -> None:
    wf.checkpoint(wf.ones(3))


@mistake(
    FAMILY,
    "A derivative by an option that is read as a number",
    GradientError,
    "var",
    problem="correction is read as a number, and its derivative would be lost",
    expected="a constant for correction",
    got="correction: f32[]",
    fix="give the derivative up on purpose: x.detach() in place of x",
)
def derivative_by_an_option() -> None:
    correction = wf.tensor(1.0, requires_grad=True)
    wf.var(wf.tensor([1.0, 2.0, 4.0]), correction=correction)
