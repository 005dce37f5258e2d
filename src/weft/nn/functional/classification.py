"""Losses over classes: cross entropy and its relatives.

>>> import weft as wf
>>> logits = wf.tensor([[0.0, 0.0]])
>>> round(cross_entropy(logits, wf.tensor([1])).item(), 4)
0.6931
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.eager import unit
from weft.nn.functional.checks import check_range, choose, same_shape, values_of
from weft.nn.functional.losses import REDUCTIONS, reduce_losses
from weft.precision import follow_table


@follow_table
@unit
def cross_entropy(
    x: wf.Tensor,
    target: wf.Tensor,
    weight: wf.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> wf.Tensor:
    """-log softmax(x) at the target: x [batch, classes, ...], or [classes].

    The target is class indices [batch, ...], or probabilities of the shape of x. weight [classes]
    scales each class, and the mean is the weighted one; targets equal to `ignore_index` count for
    nothing; label_smoothing spreads that share of the target evenly over all classes.

    >>> x = wf.tensor([[0.0, 0.0], [5.0, 1.0]])
    >>> round(cross_entropy(x, wf.tensor([0, -100])).item(), 4)
    0.6931
    """
    axis = 0 if x.ndim == 1 else 1
    if not 0.0 <= label_smoothing <= 1.0:
        raise wf.ArgumentError(
            "cross_entropy",
            "label_smoothing is no share",
            expected="0 <= label_smoothing <= 1",
            got={"label_smoothing": label_smoothing},
            fix="label_smoothing=0.1",
        )
    logs = wf.log_softmax(x, axis=axis)
    if not target.dtype.is_inexact:
        options = weight, ignore_index, reduction
        return _of_indices("cross_entropy", logs, target, *options, label_smoothing, axis)
    return _of_probabilities(logs, target, weight, reduction, label_smoothing, axis)


@follow_table
@unit
def nll_loss(
    x: wf.Tensor,
    target: wf.Tensor,
    weight: wf.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> wf.Tensor:
    """-x at the target, for log-probabilities x [batch, classes, ...] and indices [batch, ...].

    >>> nll_loss(wf.tensor([[-1.0, -2.0]]), wf.tensor([1])).item()
    2.0
    """
    axis = 0 if x.ndim == 1 else 1
    return _of_indices("nll_loss", x, target, weight, ignore_index, reduction, 0.0, axis)


def _of_indices(
    op: str,
    logs: wf.Tensor,
    target: wf.Tensor,
    weight: wf.Tensor | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
    axis: int,
) -> wf.Tensor:
    choose(op, "reduction", reduction, REDUCTIONS)
    _check_labels(op, logs, target, axis)
    counts = wf.not_equal(target, ignore_index)  # [batch, ...], like all but logs
    # Class 0 stands in for ignored targets, so that indices are in range; `where` drops its loss.
    labels = check_range(op, wf.where(counts, target, 0), logs.shape[axis], "label")
    places = wf.expand_dims(labels, axis=axis)  # [batch, 1, ...]
    target_logs = wf.squeeze(wf.take_along_axis(logs, places, axis=axis), axis=axis)
    scale = counts.astype(logs.dtype)
    if weight is not None:
        _check_weight(op, logs, weight, axis)
        scale = scale * wf.take(weight, labels, axis=0)
    losses = wf.where(counts, -target_logs * scale, 0.0)
    if smoothing:
        class_logs = logs if weight is None else logs * _per_class(weight, logs, axis)
        even_losses = wf.where(counts, -wf.mean(class_logs, axis=axis), 0.0)
        losses = (1 - smoothing) * losses + smoothing * even_losses
    if reduction == "mean":
        # In 16 bits the sums of a large batch would overflow, or its count be rounded.
        narrow = losses.dtype if losses.dtype.bits == 16 else None
        sums = [wf.sum(x if narrow is None else x.astype(wf.float32)) for x in (losses, scale)]
        return sums[0] / sums[1] if narrow is None else (sums[0] / sums[1]).astype(narrow)
    return reduce_losses(op, losses, reduction)


def _of_probabilities(
    logs: wf.Tensor,
    target: wf.Tensor,
    weight: wf.Tensor | None,
    reduction: str,
    smoothing: float,
    axis: int,
) -> wf.Tensor:
    if not wf.staging.same_shape(logs.shape, target.shape):
        raise _shapes("cross_entropy", logs, target, axis)
    if smoothing:
        target = (1 - smoothing) * target + smoothing / int(logs.shape[axis])
    if weight is not None:
        _check_weight("cross_entropy", logs, weight, axis)
        logs = logs * _per_class(weight, logs, axis)
    losses = -wf.sum(logs * target, axis=axis)
    return reduce_losses("cross_entropy", losses, reduction)


def _per_class(weight: wf.Tensor, x: wf.Tensor, axis: int) -> wf.Tensor:
    """One number for each class, in a shape that broadcasts with x."""
    return wf.reshape(weight, (-1, *[1] * (x.ndim - axis - 1)))


def _check_labels(op: str, logs: wf.Tensor, target: wf.Tensor, axis: int) -> None:
    wanted = (*logs.shape[:axis], *logs.shape[axis + 1 :])
    if logs.ndim == 0 or not wf.staging.same_shape(target.shape, wanted):
        raise _shapes(op, logs, target, axis)


def _shapes(op: str, x: wf.Tensor, target: wf.Tensor, axis: int) -> wf.ShapeError:
    wanted = [*x.shape[:axis], *x.shape[axis + 1 :]]
    if not target.dtype.is_integer and wf.staging.same_shape(target.shape, tuple(wanted)):
        return wf.ShapeError(
            op,
            "the target has the shape of class indices, but they are not whole numbers",
            expected=f"whole numbers {wanted}, or probabilities {list(x.shape)}",
            got={"x": x, "target": target},
            fix="target.astype('int64')",
        )
    has_column = target.ndim == x.ndim and target.shape[axis] == 1
    fix = "classes stand on axis 1: wf.moveaxis(x, -1, 1), or x.reshape(-1, classes)"
    if has_column and wf.staging.same_shape(
        (*target.shape[:axis], *target.shape[axis + 1 :]), tuple(wanted)
    ):
        fix = f"target.squeeze({axis})"
    elif target.ndim == x.ndim == 2 and not has_column:
        fix = f"give each of the {x.shape[axis]} classes a column, or target.argmax({axis})"
    return wf.ShapeError(
        op,
        "the target has neither the shape of class indices nor that of probabilities",
        expected=f"indices {wanted}, or probabilities {list(x.shape)}",
        got={"x": x, "target": target},
        fix=fix,
    )


def _check_weight(op: str, x: wf.Tensor, weight: wf.Tensor, axis: int) -> None:
    if weight.shape != (x.shape[axis],):
        raise wf.ShapeError(
            op,
            "there is not one weight for each class",
            expected=f"weight of shape ({x.shape[axis]},)",
            got={"x": x, "weight": weight},
            fix=f"weight=wf.ones({x.shape[axis]})",
        )


@follow_table
@unit
def multi_margin_loss(
    x: wf.Tensor,
    target: wf.Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: wf.Tensor | None = None,
    reduction: str = "mean",
) -> wf.Tensor:
    """The sum of max(0, margin - x[target] + x[j])ᵖ over the other classes j, over their count.

    weight: a factor for the loss of each right class. The mean is over the rows, not the weights.

    >>> multi_margin_loss(wf.tensor([[0.0, 1.0]]), wf.tensor([0])).item()
    1.0
    """
    _check_labels("multi_margin_loss", x, target, x.ndim - 1)
    labels = check_range("multi_margin_loss", target, x.shape[-1], "label")
    target_scores = wf.take_along_axis(x, wf.expand_dims(labels, axis=-1), axis=-1)  # [batch, 1]
    gaps = wf.relu(margin - target_scores + x) ** p
    others = 1 - wf.one_hot(labels, x.shape[-1], dtype=x.dtype)
    losses = wf.sum(gaps * others, axis=-1) / x.shape[-1]
    if weight is not None:
        _check_weight("multi_margin_loss", x, weight, -1)
        losses = losses * wf.take(weight, labels, axis=0)
    return reduce_losses("multi_margin_loss", losses, reduction)


@follow_table
@unit
def multilabel_margin_loss(x: wf.Tensor, target: wf.Tensor, reduction: str = "mean") -> wf.Tensor:
    """The sum of max(0, 1 - x[right] + x[wrong]) over pairs of classes, over their count.

    target: the right classes of each row, [..., classes], from its first element to the first -1.

    >>> multilabel_margin_loss(wf.tensor([[0.0, 1.0]]), wf.tensor([[0, -1]])).item()
    1.0
    """
    same_shape("multilabel_margin_loss", x, target)
    classes = x.shape[-1]
    # A label counts as long as no earlier one is negative: 1 until the first -1, then 0.
    counts = wf.cumulative_prod((target >= 0).astype(x.dtype), axis=-1)  # [..., labels]
    labels = check_range(
        "multilabel_margin_loss", wf.where(counts > 0, target, 0), classes, "label"
    )
    scores = wf.take_along_axis(x, labels, axis=-1)  # [..., labels]
    chosen = wf.one_hot(labels, classes, dtype=x.dtype) * wf.expand_dims(counts, axis=-1)
    wrong = 1 - wf.max(chosen, axis=-2, keepdims=True)  # [..., 1, classes]
    gaps = wf.relu(1 - wf.expand_dims(scores, axis=-1) + wf.expand_dims(x, axis=-2))
    losses = wf.sum(gaps * wf.expand_dims(counts, axis=-1) * wrong, axis=(-2, -1)) / classes
    return reduce_losses("multilabel_margin_loss", losses, reduction)


@follow_table
@unit
def multilabel_soft_margin_loss(
    x: wf.Tensor, target: wf.Tensor, weight: wf.Tensor | None = None, reduction: str = "mean"
) -> wf.Tensor:
    """Binary cross entropy of sigmoid(x) for each class, and the mean of all classes.

    >>> round(multilabel_soft_margin_loss(wf.zeros((1, 2)), wf.tensor([[1.0, 0.0]])).item(), 4)
    0.6931
    """
    same_shape("multilabel_soft_margin_loss", x, target)
    losses = -(target * wf.log_sigmoid(x) + (1 - target) * wf.log_sigmoid(-x))
    losses = losses if weight is None else losses * weight
    return reduce_losses("multilabel_soft_margin_loss", wf.mean(losses, axis=-1), reduction)


LOWEST = -1e30
"""Stands for log 0: finite, so that differences and derivatives of it are numbers."""


@follow_table
def ctc_loss(
    log_probs: wf.Tensor,
    targets: wf.Tensor,
    input_lengths: wf.Tensor,
    target_lengths: wf.Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> wf.Tensor:
    """-log of the chance that the steps spell the target, over all alignments (Graves, 2006).

    log_probs: [time, batch, classes]; targets: [batch, longest], padded at will; both lengths:
    [batch]. "mean" divides each loss by its target's length. A target that does not fit its input
    has an infinite loss, or zero with zero_infinity. Lengths out of range are refused; inside a
    transform, where they are not known, their loss is NaN.

    >>> logs = wf.log_softmax(wf.zeros((2, 1, 3)))
    >>> lengths = wf.tensor([2]), wf.tensor([1])
    >>> round(ctc_loss(logs, wf.tensor([[1]]), *lengths, reduction="sum").item(), 4)  # log(9/3)
    1.0986
    """
    choose("ctc_loss", "reduction", reduction, REDUCTIONS)
    input_lengths, target_lengths = wf.asarray(input_lengths), wf.asarray(target_lengths)
    _check_ctc(log_probs, targets, input_lengths, target_lengths)
    symbols = _with_blanks(log_probs, targets, target_lengths, blank)  # [batch, 2 longest + 1]
    losses = -_alignments(log_probs, symbols, input_lengths, target_lengths, blank)
    impossible = losses > -LOWEST / 2
    losses = wf.where(impossible, 0.0 if zero_infinity else wf.inf, losses)
    losses = wf.where(
        _are_lengths(log_probs, targets, input_lengths, target_lengths), losses, wf.nan
    )
    if reduction == "mean":
        return wf.mean(losses / wf.maximum(target_lengths, 1).astype(losses.dtype))
    return reduce_losses("ctc_loss", losses, reduction)


def _are_lengths(
    log_probs: wf.Tensor, targets: wf.Tensor, inputs: wf.Tensor, lengths: wf.Tensor
) -> wf.Tensor:
    """Whether lengths are within their range, [batch]; they may be known only in the program."""
    fits = (inputs >= 0) & (inputs <= log_probs.shape[0])
    return fits & (lengths >= 0) & (lengths <= targets.shape[1])


def _with_blanks(
    log_probs: wf.Tensor, targets: wf.Tensor, target_lengths: wf.Tensor, blank: int
) -> wf.Tensor:
    """The target with a blank before, between and after its labels; padding is blank, too."""
    batch, longest = targets.shape
    is_label = wf.arange(longest) < wf.expand_dims(target_lengths, axis=1)  # [batch, longest]
    filled_targets = wf.where(is_label, targets, blank)
    labels = check_range("ctc_loss", filled_targets, log_probs.shape[2], "label")
    blanks = wf.full((batch, longest), blank, dtype=labels.dtype)
    # [batch, longest, 2] read row by row: blank, label, blank, label, ...
    pairs = wf.reshape(wf.stack([blanks, labels], axis=2), (batch, 2 * longest))
    return wf.concat([pairs, wf.full((batch, 1), blank, dtype=labels.dtype)], axis=1)


def _alignments(
    log_probs: wf.Tensor,
    symbols: wf.Tensor,
    input_lengths: wf.Tensor,
    target_lengths: wf.Tensor,
    blank: int,
) -> wf.Tensor:
    """The log of the summed chances of all alignments, [batch], by the forward algorithm."""
    batch, states = symbols.shape
    time = log_probs.shape[0]
    symbols_in_time = wf.broadcast_to(wf.expand_dims(symbols, axis=0), (time, batch, states))
    emissions = wf.take_along_axis(log_probs, symbols_in_time, axis=2)  # [time, batch, states]
    # A blank may be skipped only between two different labels: then the symbol is a label, and
    # another one than the label two states before it.
    two_before = wf.pad(symbols, [(0, 0), (2, 0)], constant_values=-1)[:, :states]
    may_skip = wf.not_equal(symbols, blank) & wf.not_equal(symbols, two_before)
    # An alignment begins with the first blank or the first label.
    start = wf.broadcast_to(wf.where(wf.arange(states) < 2, 0.0, LOWEST), (batch, states))

    def step(carry: wf.Tensor, given: tuple[wf.Tensor, wf.Tensor]) -> Any:
        number, emission = given
        # Into a state leads the same one, the one before it, and the one before a skipped blank.
        one, two = _move_states(carry, 1), wf.where(may_skip, _move_states(carry, 2), LOWEST)
        is_first = wf.equal(number, 0)
        arrivals = wf.where(is_first, carry, wf.logaddexp(wf.logaddexp(carry, one), two))
        runs = wf.expand_dims(number < input_lengths, axis=1)  # a shorter input keeps its last step
        return wf.where(runs, wf.maximum(arrivals + emission, LOWEST), carry), None

    start = start.astype(log_probs.dtype)
    last, _ = wf.scan(step, start, (wf.arange(time), emissions))  # [batch, states]
    # An alignment ends with the last blank or the last label, where there is one.
    last_blank = wf.expand_dims(2 * target_lengths, axis=1)
    on_blank = wf.take_along_axis(last, last_blank, axis=1)
    on_label = wf.take_along_axis(last, wf.maximum(last_blank - 1, 0), axis=1)
    on_label = wf.where(last_blank > 0, on_label, LOWEST)
    return wf.squeeze(wf.logaddexp(on_blank, on_label), axis=1)


def _move_states(carry: wf.Tensor, places: int) -> wf.Tensor:
    """The states moved up; those that nothing moves to are impossible."""
    states = carry.shape[1]
    return wf.pad(carry, [(0, 0), (places, 0)], constant_values=LOWEST)[:, :states]


def _check_ctc(
    log_probs: wf.Tensor, targets: wf.Tensor, inputs: wf.Tensor, lengths: wf.Tensor
) -> None:
    batch = log_probs.shape[1:2]
    if (
        log_probs.ndim != 3
        or targets.ndim != 2
        or not (targets.shape[:1] == inputs.shape == lengths.shape == batch)
    ):
        raise wf.ShapeError(
            "ctc_loss",
            "inputs, targets and lengths do not fit each other",
            expected="log_probs [time, batch, classes], targets [batch, longest], lengths [batch]",
            got={
                "log_probs": log_probs,
                "targets": targets,
                "input_lengths": inputs,
                "target_lengths": lengths,
            },
            fix="pad targets to one length: [batch, longest]",
        )
    for name, given, most in (
        ("input_lengths", inputs, log_probs.shape[0]),
        ("target_lengths", lengths, targets.shape[1]),
    ):
        values: Any = values_of(given)
        known = values is not None and values.size > 0 and isinstance(most, int)
        if known and (values.min() < 0 or values.max() > most):
            raise wf.ArgumentError(
                "ctc_loss",
                f"{name} are longer than what they are the lengths of",
                expected=f"0 <= length <= {most}",
                got={name: given.tolist()},
                fix=f"wf.clip({name}, 0, {most})",
            )
