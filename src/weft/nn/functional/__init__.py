"""The stateless twins of the layers: plain functions over tensors.

>>> import weft as wf
>>> from weft.nn import functional as F
>>> F.mse_loss(wf.tensor([1.0, 2.0]), wf.tensor([1.0, 4.0])).item()
2.0
"""

from weft import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    cosine_similarity,
    interpolate,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    normalize,
    one_hot,
)
from weft.names import explain_all as _explain_all
from weft.names import missing_from as _missing_from
from weft.nn.functional.activations import (
    ACTIVATIONS,
    activate,
    activation_name,
    celu,
    elu,
    gelu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    mish,
    prelu,
    register_activation,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
)
from weft.nn.functional.attention import (
    apply_rotary,
    attention_weights,
    causal_mask,
    rotary_angles,
    scaled_dot_product_attention,
    sinusoidal_positions,
)
from weft.nn.functional.classification import (
    cross_entropy,
    ctc_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    nll_loss,
)
from weft.nn.functional.dropout import (
    alpha_dropout,
    drop_path,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
)
from weft.nn.functional.embedding import embedding, embedding_bag
from weft.nn.functional.grids import affine_grid, grid_sample
from weft.nn.functional.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    pairwise_distance,
    poisson_nll_loss,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from weft.nn.functional.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    rms_norm,
)
from weft.nn.functional.patches import (
    fold,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
    unfold,
)
from weft.nn.functional.products import bilinear, linear
from weft.nn.functional.rearrangement import channel_shuffle, pad, pixel_shuffle, pixel_unshuffle
from weft.nn.functional.recurrent import gru_cell, lstm_cell, recurrent_layer, rnn_cell

__all__ = [
    "ACTIVATIONS", "activate", "activation_name", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "affine_grid", "alpha_dropout", "apply_rotary", "attention_weights", "avg_pool1d", "avg_pool2d",
    "avg_pool3d",
    "batch_norm", "bilinear", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "causal_mask", "celu", "channel_shuffle", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "cosine_embedding_loss", "cosine_similarity",
    "cross_entropy", "ctc_loss", "drop_path", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "elu", "embedding", "embedding_bag", "fold", "gaussian_nll_loss", "gelu", "glu", "grid_sample",
    "group_norm",
    "gru_cell", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hinge_embedding_loss",
    "huber_loss", "instance_norm", "interpolate", "kl_div", "l1_loss", "layer_norm", "leaky_relu",
    "linear", "local_response_norm", "log_sigmoid", "log_softmax", "lstm_cell",
    "margin_ranking_loss", "max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d",
    "max_unpool3d", "mish", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss",
    "normalize", "one_hot", "pad", "pairwise_distance",
    "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss", "prelu", "recurrent_layer",
    "register_activation", "relu", "relu6", "rms_norm", "rnn_cell", "rotary_angles",
    "scaled_dot_product_attention", "selu", "sigmoid", "silu", "sinusoidal_positions",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink",
    "softsign", "tanh", "tanhshrink", "threshold", "triplet_margin_loss", "unfold",
]  # fmt: skip

_explain_all(globals(), __all__)
__getattr__ = _missing_from("wf.nn.functional", __all__)
