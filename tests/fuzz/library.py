"""Functions of the library that are composed of others: activations, losses, distances, images.

Each line is an expression of a value `{v}`, and of one like it, `{b}`, or of places along its first
axis, `{i}`. A number of them have kinks; the generator's noise says where a value lies next to one.
"""

from __future__ import annotations

from tests.fuzz.draw import Draw, Value

ANY = (
    "F.celu({v}, 0.7)",
    "F.elu({v})",
    "F.selu({v})",
    "F.mish({v})",
    "F.leaky_relu({v}, 0.1)",
    "F.relu6({v} * 4)",
    "F.hardtanh({v}, -0.3, 0.8)",
    "F.hardswish({v} * 3)",
    "F.hardsigmoid({v} * 3)",
    "F.hardshrink({v}, 0.25)",
    "F.softshrink({v}, 0.25)",
    "F.tanhshrink({v})",
    "F.softsign({v})",
    "wf.deg2rad({v} * 90)",
    "wf.rad2deg({v})",
    "wf.isclose({v}, {b})",
    "wf.isposinf({v} / 0)",
    "wf.atleast_3d({v})",
    "wf.ravel({v})",
    "wf.subtract({v}, {b})",
    "wf.divide({v}, wf.abs({b}) + 0.5)",
    "F.l1_loss({v}, {b})",
    "F.huber_loss({v}, {b}, delta=0.5)",
    "F.binary_cross_entropy(wf.sigmoid({v}), wf.sigmoid({b}))",
    "F.binary_cross_entropy_with_logits({v}, wf.sigmoid({b}))",
    "F.poisson_nll_loss(wf.tanh({v}), wf.abs({b}))",
    "F.gaussian_nll_loss({v}, {b}, wf.square({v}) + 0.5)",
    "F.soft_margin_loss({v}, wf.sign({b}), reduction='sum')",
    "F.hinge_embedding_loss({v}, wf.where({b} > 0, 1, -1).astype({v}.dtype))",
)
"""Of a value with any number of axes."""
ROWS = (
    "wf.nansum(wf.where({v} > 0.5, wf.nan, {v}), axis={a})",
    "wf.average({v}, axis={a}, weights=wf.abs({v}) + 0.5)",
    "wf.cosine_similarity({v}, {b} + 2, axis={a})",
    "F.kl_div(wf.log_softmax({v}, axis=-1), wf.softmax({b}, axis=-1), reduction='sum')",
    "wf.diag_embed({v})",
    "wf.stack(wf.unstack({v}[:9], axis=0)[::-1], axis=0)",  # thousands of rows take a minute
    "wf.vstack(({v}, {v}))",
    "wf.unfold({v}, {a}, 2, 1)",
    "wf.segment_mean({v}, wf.arange({v}.shape[0]) // 2, {v}.shape[0])",
    "wf.segment_max(wf.take({v}, {i}, axis=0), wf.arange({i}.shape[0]) // 2, 3)",
    "wf.index_put({v}, ({i},), wf.take({v}, {i}, axis=0) * 2, accumulate=True)",
    "wf.bucketize({v}, wf.linspace(-1, 1, 9, dtype={v}.dtype))",
    "wf.isin({i}, wf.arange(2))",
    "wf.bincount({i}, length={v}.shape[0])",
    "wf.fft.fftn({v})",
    "wf.fft.irfftn(wf.fft.rfftn({v}))",
    "wf.real(wf.fft.hfft({v}))",
    "wf.fft.ihfft({v})",
    "wf.fft.ifftshift({v})",
    "wf.linalg.vector_norm({v} + 3, axis={a})",
)
"""Of a value with one axis or more."""
MATRICES = (
    "wf.cdist({v}, {v} + 0.5)",
    "wf.cdist({v}, {v} + 0.5, p=1.0)",
    "wf.cov({v})",
    "wf.addmm({v}, {v}, wf.matrix_transpose({v}) @ {v}, beta=0.5, alpha=0.1)",
    "wf.kron({v}[:2, :3], {v}[:3, :2])",
    "F.pairwise_distance({v}, {b} + 2)",
    "F.nll_loss(wf.log_softmax({v}, axis=-1), wf.arange({v}.shape[0]) % {v}.shape[1])",
    "F.multi_margin_loss({v}, wf.arange({v}.shape[0]) % {v}.shape[1])",
    "F.multilabel_soft_margin_loss({v}, ({b} > 0).astype({v}.dtype))",
    "F.triplet_margin_loss({v}, {v} * 2 + 1, {b} - 1)",
    "F.prelu({v}, wf.tanh({v}[0]))",
    "F.gru_cell({v}, {v} * 0.5, wf.tile(wf.matrix_transpose({v}) @ {v}, (3, 1)) * 0.1, "
    "wf.tile(wf.matrix_transpose({v}) @ {v}, (3, 1)) * 0.05)",
    "F.lstm_cell({v}, ({v} * 0.5, wf.tanh({v})), "
    "wf.tile(wf.matrix_transpose({v}) @ {v}, (4, 1)) * 0.1, "
    "wf.tile(wf.matrix_transpose({v}) @ {v}, (4, 1)) * 0.05)[1]",
    "wf.linalg.multi_dot([{v}, wf.matrix_transpose({v}), {v}]) * 0.1",
    "wf.linalg.matrix_norm({v} + 3)",
)
"""Of a matrix."""
IMAGES = (
    "F.adaptive_avg_pool2d({v}, 2)",
    "F.adaptive_max_pool2d({v}, (1, 3))",
    "F.avg_pool2d({v}, 2, padding=1)",
    "F.channel_shuffle({v}, {v}.shape[1])",
    "F.pixel_unshuffle(wf.tile({v}, (1, 1, 2, 2)), 2)",
    "F.pixel_shuffle(wf.tile({v}, (1, 4, 1, 1)), 2)",
    "F.grid_sample({v}, F.affine_grid(wf.tanh(wf.tile({v}[:, :1, :1, :1].reshape(-1, 1, 1), "
    "(1, 2, 3))), ({v}.shape[0], {v}.shape[1], 3, 4)))",
    "F.grid_sample({v}, wf.tanh(wf.stack(({v}[:, 0], {v}[:, -1]), axis=-1)), "
    "padding_mode='border')",
    "F.apply_rotary({v}, *F.rotary_angles(wf.arange({v}.shape[2]), {v}.shape[3]))",
    "F.attention_weights({v}, {v} * 0.5, causal=True)",
    "wf.abs(wf.fft.fft2({v})) + 1",
)
"""Of a value with four axes."""
SMALL = 4096
"""The most elements of a value that is transformed, or sampled at places: what follows is slow."""


def compose(draw: Draw) -> str:
    """A function that is composed of others."""
    kinds = [(ANY, 0, 6), (ROWS, 1, 6), (MATRICES, 2, 2), (IMAGES, 4, 4)]
    options, least, most = draw.one_of(kinds)
    text: str = draw.one_of(options)

    def fits(v: Value) -> bool:
        is_narrow = "fft" in text and v.dtype not in ("float32", "float64")
        return not is_narrow and v.size <= SMALL

    v = draw.value("f", least, most, fits)
    given = {"v": v.name, "b": draw.like(v).name if "{b}" in text else "", "a": 0, "i": ""}
    if "{a}" in text:
        given["a"] = draw.axis(v)
    if "{i}" in text:
        given["i"] = f"({draw.index(v, 0)})"
    return text.format(**given)
