"""Elements moved between channels and positions, and added at the edges.

>>> import weft as wf
>>> pixel_shuffle(wf.arange(4.0).reshape(1, 4, 1, 1), 2).tolist()
[[[[0.0, 1.0], [2.0, 3.0]]]]
"""

from __future__ import annotations

from collections.abc import Sequence

import weft as wf

MODES = {
    "constant": "constant", "zeros": "constant", "reflect": "reflect", "replicate": "edge",
    "circular": "wrap",
}  # fmt: skip
"""What PyTorch's modes of padding are called in `wf.pad`."""


def pad(x: wf.Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> wf.Tensor:
    """Elements added at the edges: (left, right) of the last axis, then of the one before it.

    mode: "constant", "reflect", "replicate" or "circular". Negative widths cut elements off.

    >>> pad(wf.tensor([[1.0, 2.0]]), (1, 0, 0, 1)).tolist()
    [[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]
    """
    if mode not in MODES or len(pad) % 2 or len(pad) // 2 > x.ndim:
        raise wf.ArgumentError(
            "pad",
            "the padding is no pairs of widths for the last axes, or of no known mode",
            expected=f"(left, right) for at most {x.ndim} axes, one of {', '.join(MODES)}",
            got={"x": x, "pad": tuple(pad), "mode": mode},
            fix="pad=(1, 1)",
        )
    widths = [(0, 0)] * (x.ndim - len(pad) // 2)
    widths += [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    added = [(max(low, 0), max(high, 0)) for low, high in widths]
    if mode == "reflect":  # what is cut off at one edge is still seen in the mirror at the other
        return _crop_edges(wf.pad(x, added, MODES[mode]), widths)
    x = _crop_edges(x, widths)
    if mode in ("constant", "zeros"):
        return wf.pad(x, added, constant_values=value)
    return wf.pad(x, added, MODES[mode])


def _crop_edges(x: wf.Tensor, widths: list[tuple[int, int]]) -> wf.Tensor:
    """The tensor without the elements that negative widths cut off."""
    if all(low >= 0 and high >= 0 for low, high in widths):
        return x
    for axis, (low, high) in enumerate(widths):
        if max(-low, 0) + max(-high, 0) > x.shape[axis]:
            raise wf.ShapeError(
                "pad",
                f"more is cut off axis {axis} than there is",
                expected=f"at most {x.shape[axis]} in all",
                got={"x": x, "pad": (low, high)},
                fix="pad=(-1, -1)",
            )
    return x[tuple(slice(max(-low, 0), min(high, 0) or None) for low, high in widths)]


def pixel_shuffle(x: wf.Tensor, upscale_factor: int) -> wf.Tensor:
    """[..., channels r², height, width] -> [..., channels, height r, width r]."""
    r = upscale_factor
    _check_image(
        "pixel_shuffle", x, x.ndim >= 3 and x.shape[-3] % (r * r) == 0, f"channels % {r * r} == 0"
    )
    *lead, channels, height, width = x.shape
    split = wf.reshape(x, (*lead, channels // (r * r), r, r, height, width))
    n = len(lead)
    order = (*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return wf.reshape(
        wf.permute_dims(split, order), (*lead, channels // (r * r), height * r, width * r)
    )


def pixel_unshuffle(x: wf.Tensor, downscale_factor: int) -> wf.Tensor:
    """[..., channels, height r, width r] -> [..., channels r², height, width].

    >>> pixel_unshuffle(wf.arange(4.0).reshape(1, 2, 2), 2).tolist()
    [[[0.0]], [[1.0]], [[2.0]], [[3.0]]]
    """
    r = downscale_factor
    fits = x.ndim >= 3 and x.shape[-1] % r == 0 and x.shape[-2] % r == 0
    _check_image("pixel_unshuffle", x, fits, f"height % {r} == width % {r} == 0")
    *lead, channels, height, width = x.shape
    split = wf.reshape(x, (*lead, channels, height // r, r, width // r, r))
    n = len(lead)
    order = (*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return wf.reshape(
        wf.permute_dims(split, order), (*lead, channels * r * r, height // r, width // r)
    )


def channel_shuffle(x: wf.Tensor, groups: int) -> wf.Tensor:
    """Channels of the groups taken in turn: x [batch, channels, ...].

    >>> channel_shuffle(wf.arange(4.0).reshape(1, 4, 1), 2).flatten().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    _check_image(
        "channel_shuffle", x, x.ndim >= 2 and x.shape[1] % groups == 0, f"channels % {groups} == 0"
    )
    split = wf.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return wf.reshape(wf.swapaxes(split, 1, 2), x.shape)


def _check_image(op: str, x: wf.Tensor, fits: bool, expected: str) -> None:
    if not fits:
        raise wf.ShapeError(
            op,
            "the input cannot be divided so",
            expected=expected,
            got={"x": x},
            fix="choose a factor that divides the sizes",
        )
