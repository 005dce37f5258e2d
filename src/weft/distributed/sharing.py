"""Data parallel training: each process takes its share of a batch, and all make the same update.

    optimizer = wf.distributed.data_parallel(wf.optim.AdamW(model.parameters()))

After that line `optimizer.step()` first takes the mean of all processes' gradients. With `zero=1`
each process keeps the optimiser's state of its part of every parameter, and updates that part; with
`zero=2` it also receives only that part of the gradients. Gradients travel in buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import weft as wf
from weft.collectives import (
    all_gather,
    all_reduce,
    axis_size,
    broadcast,
    find_group,
    sum_of,
    take_shard,
)
from weft.distributed.group import Group
from weft.distributed.parameters import (
    forget_values,
    gather_value,
    is_of_experts,
    is_part,
    is_tensor_part,
    own_value,
    part_facts,
    whole_shape,
)

__all__ = [
    "BUCKET", "GradientSharing", "LocalSteps", "data_parallel", "part_weight", "share_stages",
    "split_anew",
]  # fmt: skip

BUCKET = 1 << 22
"""Bytes of gradients that travel together."""
ALONE = 1 << 20
"""Bytes from which a gradient travels alone, and is copied into no bucket and out of none."""

Gradients = list[wf.Tensor | None]


def data_parallel(optimizer: Any, *, zero: int = 0, mesh_axis: str = "data") -> Any:
    """The optimiser, whose steps take the mean of the gradients of all processes along an axis.

    Parameters and the optimiser's state become those of the first process. zero: what is split
    over the processes beside the batch: 1 the optimiser's state, 2 the gradients, too, 3 all that
    belongs to parameters that `shard_parameters` has split. Parameters of experts that
    `shard_experts` has divided stay divided, with zero 0 or 3.

    >>> import weft as wf
    >>> wf.distributed.init()
    >>> w = wf.tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = wf.distributed.data_parallel(wf.optim.SGD([w], lr=0.5), zero=1)
    >>> optimizer.minimize((w * w).sum() / 2)
    >>> w.tolist()
    [0.5, 1.0]
    >>> wf.distributed.shutdown()
    """
    are_split = tuple(is_part(p) and not is_tensor_part(p) for p in optimizer.parameters)
    pairs = zip(optimizer.parameters, are_split, strict=True)
    has_others = any(split and not is_of_experts(parameter) for parameter, split in pairs)
    allowed = (3,) if has_others else (0, 3) if any(are_split) else (0, 1, 2)
    if zero not in allowed:
        raise wf.ArgumentError(
            "data_parallel",
            "there is no such level" if zero not in (0, 1, 2, 3) else "this is another level",
            expected="zero: 0, 1 or 2; 3 for parameters that shard_parameters(module) has split; "
            "0 or 3 with divided experts",
            got={"zero": zero, "split parameters": sum(are_split)},
            fix="zero=3" if has_others else "zero=0",
        )
    if zero and (not optimizer.rowwise or optimizer.waiting is not None):
        raise wf.UnsupportedError(
            "data_parallel",
            "the state of this optimiser cannot be split",
            expected="a rule that treats all elements alike, without accumulate",
            got={"optimizer": type(optimizer).__name__, "zero": zero},
            fix="zero=0, or AdamW, and Trainer(accumulate=...) in place of the optimiser's",
        )
    axes, copies = _axes_of_split_parameters(optimizer, are_split)
    if zero and any(copies):
        raise wf.UnsupportedError(
            "data_parallel",
            "experts that several processes have copies of are not split further",
            expected="zero=0 where shard_experts has copies=...",
            got={"zero": zero, "copies": max(filter(None, copies))},
            fix="zero=0, or shard_experts(model) along all processes with zero=3",
        )
    sharing = GradientSharing(mesh_axis, zero, axis_size(mesh_axis), are_split, axes, copies)
    _compare_optimizers("data_parallel", optimizer, mesh_axis, f"zero={zero}")
    with wf.no_grad():
        for parameter, slots, split in zip(
            optimizer.parameters, optimizer.state, are_split, strict=True
        ):
            if split:
                continue
            parameter.copy_(broadcast(parameter, mesh_axis))
            for value in slots.values():
                value.set_(sharing.part(value) if zero in (1, 2) else broadcast(value, mesh_axis))
    optimizer.sharing = sharing
    return optimizer


def _check_state_of_parts(optimizer: Any) -> None:
    """Refuse state that was made for whole parameters which processes have parts of now."""
    for parameter, slots in zip(optimizer.parameters, optimizer.state, strict=True):
        whole = whole_shape(parameter)
        is_whole = is_part(parameter) and whole != tuple(parameter.shape)
        if is_whole and any(tuple(value.shape) == whole for value in slots.values()):
            raise wf.ArgumentError(
                "data_parallel",
                "the optimiser was made before its parameters were split",
                expected=f"state of the shape {list(parameter.shape)}, that of this process's part",
                got=dict(slots),
                fix="make the optimiser behind shard_experts or shard_parameters",
            )


def _axes_of_split_parameters(
    optimizer: Any, are_split: Sequence[bool]
) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """For each parameter the axis that it is split along, and the one of copies, if any.

    State that was made for whole parameters is refused.
    """
    _check_state_of_parts(optimizer)
    pairs = zip(map(part_facts, optimizer.parameters), are_split, strict=True)
    facts = [known if split else None for known, split in pairs]
    axes = tuple("" if known is None else known.mesh_axis for known in facts)
    return axes, tuple(None if known is None else known.copies for known in facts)


def _compare_optimizers(op: str, optimizer: Any, mesh_axis: str, how: str) -> None:
    """Refuse other rules, settings or parameters on some processes: their weights would drift."""
    group = find_group(op, mesh_axis)
    if isinstance(group, Group) and group.size > 1:
        shapes = [f"{p.dtype}{list(whole_shape(p))}" for p in optimizer.parameters]
        shown = {"the parameters": "\n".join(shapes), "the optimiser": repr(optimizer)}
        group.compare_facts(op, {"what is shared": how, **shown})


def split_anew(model: Any, optimizer: Any) -> None:
    """Give parts of parameters and state the shape that they have in the world that is now.

    They hold no values until a checkpoint is put in place, as what a lost process had is gone.
    """
    sharing = replace(optimizer.sharing, size=axis_size(optimizer.sharing.mesh_axis))
    optimizer.sharing = sharing
    with wf.no_grad():
        for parameter in model.parameters():
            forget_values(parameter)
        states = zip(optimizer.parameters, optimizer.state, optimizer.initial_states(), strict=True)
        for parameter, slots, initial in states:
            if is_part(parameter) or sharing.has_parts:
                for name, value in slots.items():
                    value.set_(sharing.part(initial[name]))


def part_weight(rows: int, mesh_axis: str = "data") -> wf.Tensor:
    """What to multiply a mean over this process's rows by, so that all rows count alike.

    Parts of a batch that does not divide have different numbers of rows; the mean of their means,
    each times its weight, is the mean over all rows. A part that is padding has no rows: 0.

    >>> import weft as wf
    >>> weights = lambda: wf.distributed.part_weight(3 - wf.distributed.rank())
    >>> [round(weight.item(), 3) for weight in wf.distributed.run_threads(weights, 2)]
    [1.2, 0.8]
    """
    own = wf.tensor(float(rows))
    return own / all_reduce(own, mesh_axis, op="mean")


def share_stages(optimizer: Any, mesh_axis: str, counted: tuple[bool, ...]) -> Any:
    """The optimiser, which agrees with those of other stages on norms and on steps to skip."""
    present = optimizer.sharing or GradientSharing()
    facts = [part_facts(parameter) for parameter in optimizer.parameters]
    axes = tuple(known.mesh_axis if known and known.axis is not None else "" for known in facts)
    optimizer.sharing = replace(
        present, stage_axis=mesh_axis, counted=counted, tensor_axes=axes if any(axes) else ()
    )
    return optimizer


class LocalSteps:
    """Steps that each process makes alone, with a mean of the parameters every so often.

    `local.step()` after each update counts; every `every`-th takes the mean over all processes of
    the parameters, and of what the optimiser keeps for them (local SGD: Stich, 2019). Parameters
    begin as those of the first process.

    >>> import weft as wf
    >>> wf.distributed.init()
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.SGD([w], lr=0.5)
    >>> local = LocalSteps(optimizer, every=2)
    >>> [local.step() for _ in range(4)]
    [False, True, False, True]
    >>> wf.distributed.shutdown()
    """

    def __init__(self, optimizer: Any, every: int, mesh_axis: str = "data") -> None:
        if type(every) is not int or every < 1:
            raise wf.ArgumentError(
                "LocalSteps",
                "this is no number of steps",
                expected="a whole number, at least 1",
                got={"every": every},
                fix="every=8",
            )
        if optimizer.sharing is not None or any(map(is_part, optimizer.parameters)):
            raise wf.ArgumentError(
                "LocalSteps",
                "the optimiser shares its gradients already",
                expected="an optimiser whose steps are its own, with whole parameters",
                got={"sharing": optimizer.sharing},
                fix="leave data_parallel and shard_parameters out",
            )
        self.optimizer, self.every = optimizer, every
        self._sharing = GradientSharing(mesh_axis, 0, axis_size(mesh_axis))
        self._count = 0
        _compare_optimizers("LocalSteps", optimizer, mesh_axis, f"every={every}")
        with wf.no_grad():
            for handle in self._handles():
                handle.copy_(broadcast(handle, mesh_axis))

    def step(self) -> bool:
        """Count an update; whether the mean was taken."""
        self._count += 1
        if self._count % self.every:
            return False
        self.take_mean()
        return True

    def take_mean(self) -> None:
        """Make parameters and state the mean of all processes' now."""
        handles = self._handles()
        with wf.no_grad():
            means = self._sharing.mean_gradients([handle.detach() for handle in handles])
            for handle, mean in zip(handles, means, strict=True):
                assert mean is not None
                handle.copy_(mean)

    def _handles(self) -> list[wf.Tensor]:
        kept = [value for slots in self.optimizer.state for value in slots.values()]
        return [*self.optimizer.parameters, *[value for value in kept if value.dtype.is_inexact]]


@dataclass(frozen=True)
class GradientSharing:
    """How an optimiser's gradients and state are shared by the processes along an axis."""

    mesh_axis: str = "data"
    zero: int = 0
    size: int = 1
    """How many processes there are; a program for another number is another program."""
    are_split: tuple[bool, ...] = ()
    """Which parameters are parts (with zero=3, and those of experts): gradients arrive summed."""
    part_axes: tuple[str, ...] = ()
    """For each parameter the mesh axis that it is split along; empty for those that are whole."""
    copy_axes: tuple[str | None, ...] = ()
    """For each parameter the axis along which processes have the same part of experts, if any."""
    stage_axis: str | None = None
    """The mesh axis along which processes hold other parameters: the stages of a pipeline."""
    counted: tuple[bool, ...] = ()
    """With a stage axis: which parameters this process counts in norms of all gradients."""
    tensor_axes: tuple[str, ...] = ()
    """For each parameter the axis along which processes compute with parts of it; or empty."""

    @property
    def has_parts(self) -> bool:
        """Whether the optimiser updates a part of each parameter, and gathers them."""
        return self.zero in (1, 2)

    def mean_gradients(self, gradients: Gradients) -> Gradients:
        """The mean of all processes' gradients: whole, or with zero=2 the parts of this process."""
        if self.size == 1:
            return [None if g is None else self.part(g) for g in gradients]
        if any(self.are_split):
            return self._mean_of_parts(gradients)
        if self.zero < 2:
            means = _in_buckets(gradients, self._mean_bucket)
            return [None if g is None else self.part(g) for g in means]
        return _in_buckets(gradients, self._scatter_bucket)

    def part(self, tensor: wf.Tensor) -> wf.Tensor:
        """This process's part of a tensor, as a vector; all of it where nothing is split."""
        if not self.has_parts:
            return tensor
        return take_shard(self._padded_rows(tensor).reshape(-1), self.mesh_axis)

    def whole(self, parts: Sequence[wf.Tensor], like: Sequence[wf.Tensor]) -> list[wf.Tensor]:
        """The tensors whose parts these are, gathered from all processes in buckets."""
        if not self.has_parts:
            return list(parts)
        results = list(parts)
        for bucket in _buckets(parts):
            joined = _flat([parts[place] for place in bucket])[None]
            rows = all_gather(joined, self.mesh_axis)  # [process, elements of all parts]
            widths = [int(parts[place].size) for place in bucket]
            for place, columns in zip(bucket, _columns(rows, widths), strict=True):
                target = like[place]
                results[place] = columns.reshape(-1)[: target.size].reshape(target.shape)
        return results

    def whole_state(self, value: wf.Tensor, parameter: wf.Tensor) -> wf.Tensor:
        """What is kept for a parameter, gathered from the processes that have parts of it."""
        if not is_part(parameter) or is_tensor_part(parameter):
            value = self.whole([value], [parameter])[0]
        return gather_value(value, parameter)

    def own_state(self, value: wf.Tensor, parameter: wf.Tensor) -> wf.Tensor:
        """This process's part of what is kept for a parameter."""
        own = own_value(value, parameter)
        return own if is_part(parameter) and not is_tensor_part(parameter) else self.part(own)

    def norm(self, gradients: Gradients, norm_of: Callable[[Gradients], wf.Tensor]) -> wf.Tensor:
        """The norm of all gradients, of which this process may hold a part."""
        if not self._has_any_parts and self.stage_axis is None:
            return norm_of(gradients)
        if self.counted:
            gradients = [g if own else None for g, own in zip(gradients, self.counted, strict=True)]
        rows = self._axes_of_parts(len(gradients))
        squares = norm_of([g for g, axes in zip(gradients, rows, strict=True) if not axes]) ** 2
        for each in sorted({axes for axes in rows if axes}):
            part = (
                norm_of([g for g, axes in zip(gradients, rows, strict=True) if axes == each]) ** 2
            )
            for axis in each:
                part = all_reduce(part, axis)
            squares = squares + part
        if self.stage_axis is not None:
            squares = all_reduce(squares, self.stage_axis)
        return wf.sqrt(squares)

    def agree(self, finite: wf.Tensor) -> wf.Tensor:
        """Whether the gradients of all processes are finite, each of which may hold some."""
        flag = finite.astype("float32")
        if self._has_any_parts and self.size > 1:
            flag = all_reduce(flag, self.mesh_axis, op="min")
        for axis in sorted({axis for axis in self.tensor_axes if axis}):
            flag = all_reduce(flag, axis, op="min")
        if self.stage_axis is not None:
            flag = all_reduce(flag, self.stage_axis, op="min")
        return flag > 0

    def _axes_of_parts(self, count: int) -> list[tuple[str, ...]]:
        """For each gradient the axes along which processes hold parts of it."""
        axes = (self.mesh_axis if self.has_parts else "",) * count
        axes = self.part_axes if any(self.are_split) else axes
        pairs = zip(axes, self.tensor_axes or ("",) * count, strict=True)
        return [tuple(filter(None, pair)) for pair in pairs]

    @property
    def _has_any_parts(self) -> bool:
        """Whether this process holds gradients that others do not."""
        return self.has_parts or any(self.are_split)

    def _mean_of_parts(self, gradients: Gradients) -> Gradients:
        """Sums that were split on the way back, and whole gradients, as means."""
        pairs = list(zip(gradients, self.are_split, strict=True))
        means = _in_buckets([None if split else g for g, split in pairs], self._mean_bucket)
        rows = zip(pairs, means, self.copy_axes, strict=True)
        return [
            (g if copies is None else all_reduce(g, copies)) / self.size
            if split and g is not None
            else mean
            for (g, split), mean, copies in rows
        ]

    def _padded_rows(self, tensor: wf.Tensor) -> wf.Tensor:
        """A tensor's elements in one row for each process, filled up with zeros."""
        size = self.size
        columns = -(-int(tensor.size) // size)
        flat = tensor.reshape(-1)
        missing = columns * size - int(tensor.size)
        filled = wf.concat([flat, wf.zeros(missing, dtype=flat.dtype)]) if missing else flat
        return filled.reshape(size, columns)

    def _mean_bucket(self, gradients: Sequence[wf.Tensor], what: str) -> list[wf.Tensor]:
        total = sum_of(_flat(gradients), self.mesh_axis, what)
        parts = _columns(total[None], [int(g.size) for g in gradients])
        # Divided in its own shape, a gradient is read once, by the update that divides it.
        return [part.reshape(g.shape) / self.size for part, g in zip(parts, gradients, strict=True)]

    def _scatter_bucket(self, gradients: Sequence[wf.Tensor], what: str) -> list[wf.Tensor]:
        rows = [self._padded_rows(g) for g in gradients]
        joined = rows[0] if len(rows) == 1 else wf.concat(rows, axis=1)
        own = sum_of(joined, self.mesh_axis, what, scattered=True) / self.size  # [1, elements]
        return [part.reshape(-1) for part in _columns(own, [int(r.shape[1]) for r in rows])]


def _flat(tensors: Sequence[wf.Tensor]) -> wf.Tensor:
    flat = [tensor.reshape(-1) for tensor in tensors]
    return flat[0] if len(flat) == 1 else wf.concat(flat)


def _columns(rows: wf.Tensor, widths: Sequence[int]) -> Iterator[wf.Tensor]:
    """The columns of a matrix, in groups of these widths."""
    start = 0
    for width in widths:
        yield rows[:, start : start + width]
        start += width


def _in_buckets(
    gradients: Gradients, share: Callable[[Sequence[wf.Tensor], str], list[wf.Tensor]]
) -> Gradients:
    """Gradients shared in buckets, those that the way back computes first ahead.

    Which gradients a bucket holds is said with it: a process that has that of another parameter,
    of the same size, would have it added to the wrong one.
    """
    indexed = [(i, g) for i, g in enumerate(gradients) if g is not None][::-1]
    present, chosen = [i for i, _ in indexed], [g for _, g in indexed]
    results: Gradients = [None] * len(gradients)
    for bucket in _buckets(chosen):
        what = f"gradients {_spans(sorted(present[i] for i in bucket))}"
        for place, value in zip(bucket, share([chosen[i] for i in bucket], what), strict=True):
            results[present[place]] = value
    return results


def _spans(numbers: Sequence[int]) -> str:
    """Increasing numbers, those in a row by their ends.

    >>> _spans([0, 1, 2, 5])
    '0-2, 5'
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _buckets(tensors: Sequence[Any]) -> Iterator[list[int]]:
    """Positions of tensors that travel together: of one dtype, up to `BUCKET` bytes.

    Those of `ALONE` bytes and more travel by themselves; a bucket is filled beside them.
    """
    bucket: list[int] = []
    filled = 0
    for position, tensor in enumerate(tensors):
        size = int(tensor.size) * tensor.dtype.itemsize
        if size >= min(ALONE, BUCKET):
            yield [position]
            continue
        if bucket and (filled + size > BUCKET or tensor.dtype != tensors[bucket[0]].dtype):
            yield bucket
            bucket, filled = [], 0
        bucket.append(position)
        filled += size
    if bucket:
        yield bucket
