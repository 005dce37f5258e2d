"""Layers against PyTorch's, with its weights under its names: results and all gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import weft as wf

torch = pytest.importorskip("torch")


@dataclass(frozen=True)
class Case:
    """A layer by name, its arguments, what it is called with; shapes stand for random inputs."""

    name: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Any, ...] = ()
    call: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    """Options that PyTorch calls otherwise."""
    training: bool = True

    def __str__(self) -> str:
        options = ",".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.name}({','.join(map(str, self.args))},{options}){self.inputs}"


def c(name: str, *args: Any, on: Any, **options: Any) -> Case:
    inputs = on if isinstance(on, list) else [on]
    return Case(name, args, options, tuple(inputs))


IMAGE = (2, 4, 7, 6)
ACTIVATIONS = [
    c("ReLU", on=(3, 4)), c("ReLU6", on=(3, 4)), c("LeakyReLU", 0.2, on=(3, 4)),
    c("PReLU", on=(3, 4)), c("PReLU", 4, on=(3, 4, 2)), c("ELU", 0.7, on=(3, 4)),
    c("CELU", 0.7, on=(3, 4)), c("SELU", on=(3, 4)), c("GELU", on=(3, 4)),
    c("GELU", "tanh", on=(3, 4)), c("SiLU", on=(3, 4)), c("Mish", on=(3, 4)),
    c("Sigmoid", on=(3, 4)), c("LogSigmoid", on=(3, 4)), c("Tanh", on=(3, 4)),
    c("Tanhshrink", on=(3, 4)), c("Softplus", 2.0, 1.0, on=(3, 4)), c("Softsign", on=(3, 4)),
    c("Softshrink", 0.3, on=(3, 4)), c("Hardshrink", 0.3, on=(3, 4)), c("Hardtanh", on=(3, 4)),
    c("Hardsigmoid", on=(3, 4)), c("Hardswish", on=(3, 4)), c("Threshold", 0.1, 2.0, on=(3, 4)),
    c("Softmax", -1, on=(3, 4)), c("LogSoftmax", 0, on=(3, 4)), c("Softmin", 1, on=(3, 4)),
    c("GLU", 1, on=(3, 4)),
]  # fmt: skip
LINEAR = [
    c("Linear", 3, 5, on=(4, 3)), c("Linear", 3, 5, on=(2, 4, 3), bias=False),
    c("Bilinear", 3, 2, 4, on=[(5, 3), (5, 2)]), c("Bilinear", 3, 2, 4, on=[(3,), (2,)]),
    c("Flatten", on=(2, 3, 4)), c("Flatten", 0, 1, on=(2, 3, 4)),
    c("Unflatten", 1, (2, 2), on=(3, 4)), c("Identity", on=(3,)),
]  # fmt: skip
CONVOLUTIONS = [
    c("Conv1d", 4, 6, 3, on=(2, 4, 9), stride=2, padding=1),
    c("Conv1d", 4, 6, 4, on=(2, 4, 9), padding="same", dilation=2, groups=2),
    c("Conv1d", 4, 6, 3, on=(4, 9), padding=2, padding_mode="circular"),
    c("Conv2d", 4, 6, 3, on=IMAGE), c("Conv2d", 4, 6, (3, 2), on=IMAGE, stride=(2, 1), bias=False),
    c("Conv2d", 4, 4, 3, on=IMAGE, groups=4, dilation=2, padding=2),
    c("Conv2d", 4, 6, 3, on=IMAGE, padding="same", padding_mode="reflect"),
    c("Conv2d", 4, 6, 3, on=IMAGE, padding=(1, 2), padding_mode="replicate"),
    c("Conv3d", 2, 3, 2, on=(1, 2, 4, 5, 3), padding=1, stride=2),
    c("ConvTranspose1d", 4, 6, 3, on=(2, 4, 5), stride=2, padding=1, output_padding=1),
    c("ConvTranspose2d", 4, 6, 3, on=IMAGE, stride=2, groups=2, bias=False),
    c("ConvTranspose2d", 4, 6, 3, on=IMAGE, dilation=2, padding=(1, 2)),
    c("ConvTranspose3d", 2, 3, 2, on=(1, 2, 3, 2, 3), stride=2),
]  # fmt: skip
POOLS = [
    c("MaxPool1d", 3, on=(2, 4, 9), stride=2, padding=1), c("MaxPool2d", 2, on=IMAGE),
    c("MaxPool2d", 3, on=IMAGE, stride=2, ceil_mode=True), c("MaxPool3d", 2, on=(1, 2, 4, 5, 4)),
    c("AvgPool1d", 3, on=(2, 4, 9), stride=2, padding=1),
    c("AvgPool2d", 3, on=IMAGE, padding=1, count_include_pad=False),
    c("AvgPool2d", (2, 3), on=IMAGE, ceil_mode=True), c("AvgPool3d", 2, on=(1, 2, 4, 5, 4)),
    c("AdaptiveAvgPool1d", 4, on=(2, 4, 9)), c("AdaptiveAvgPool2d", (3, None), on=IMAGE),
    c("AdaptiveAvgPool3d", 2, on=(1, 2, 4, 5, 3)), c("AdaptiveMaxPool1d", 4, on=(2, 4, 9)),
    c("AdaptiveMaxPool2d", (3, 2), on=IMAGE), c("AdaptiveMaxPool3d", 2, on=(1, 2, 4, 5, 3)),
]  # fmt: skip
NORMS = [
    c("BatchNorm1d", 4, on=(5, 4)), c("BatchNorm1d", 4, on=(3, 4, 6), momentum=None),
    c("BatchNorm2d", 4, on=IMAGE, momentum=0.3, eps=1e-3),
    c("BatchNorm2d", 4, on=IMAGE, affine=False),
    c("BatchNorm2d", 4, on=IMAGE, track_running_stats=False),
    c("BatchNorm3d", 2, on=(2, 2, 3, 3, 2)),
    Case("BatchNorm2d", (4,), {}, (IMAGE,), training=False),
    c("InstanceNorm1d", 4, on=(3, 4, 6)), c("InstanceNorm2d", 4, on=IMAGE, affine=True),
    c("InstanceNorm2d", 4, on=IMAGE, track_running_stats=True),
    Case("InstanceNorm2d", (4,), {"track_running_stats": True}, (IMAGE,), training=False),
    c("InstanceNorm3d", 2, on=(2, 2, 3, 3, 2)), c("LayerNorm", 6, on=IMAGE),
    c("LayerNorm", (7, 6), on=IMAGE, bias=False),
    c("LayerNorm", 6, on=(3, 6), elementwise_affine=False), c("RMSNorm", 6, on=IMAGE),
    c("RMSNorm", 6, on=IMAGE, eps=1e-3), c("GroupNorm", 2, 4, on=IMAGE),
    c("GroupNorm", 4, 4, on=(3, 4), affine=False), c("LocalResponseNorm", 3, on=IMAGE, alpha=0.5),
]  # fmt: skip
SHAPES = [
    c("Upsample", on=IMAGE, scale_factor=2.0),
    c("Upsample", on=IMAGE, size=(5, 9), mode="bilinear"),
    c("Upsample", on=IMAGE, size=(5, 9), mode="bilinear", align_corners=True),
    c("PixelShuffle", 2, on=(2, 8, 3, 2)), c("PixelUnshuffle", 2, on=(2, 3, 4, 6)),
    c("ZeroPad2d", (1, 2, 0, 3), on=IMAGE), c("ConstantPad1d", 2, 1.5, on=(2, 3, 4)),
    c("ReflectionPad2d", (1, 2, 2, 1), on=IMAGE), c("ReplicationPad3d", 1, on=(1, 2, 3, 3, 3)),
    c("CircularPad1d", (1, 2), on=(2, 3, 4)), c("ChannelShuffle", 2, on=IMAGE),
    c("ZeroPad2d", (-1, 2, 0, -1), on=IMAGE), c("Unfold", 3, on=IMAGE, padding=1, stride=2),
    c("Fold", (4, 5), 2, on=(2, 12, 12)), c("CosineSimilarity", on=[(3, 4, 2), (3, 4, 2)]),
    c("PairwiseDistance", on=[(3, 4), (3, 4)]), c("PairwiseDistance", 1.0, on=[(3, 4), (3, 4)]),
]  # fmt: skip
STATES = ((2, 3, 5), (2, 3, 5))
RECURRENT = [
    c("RNN", 4, 5, on=(6, 3, 4)), c("RNN", 4, 5, on=(6, 4), nonlinearity="relu"),
    c("LSTM", 4, 5, on=(6, 3, 4), num_layers=2, bidirectional=True),
    c("LSTM", 4, 5, on=(3, 6, 4), batch_first=True, bias=False),
    c("LSTM", 4, 5, on=[(6, 3, 4), STATES], num_layers=2),
    c("LSTM", 4, 5, on=(6, 3, 4), num_layers=2, bidirectional=True, proj_size=3),
    c("LSTM", 4, 5, on=[(6, 3, 4), ((1, 3, 2), (1, 3, 5))], proj_size=2),
    c("GRU", 4, 5, on=(6, 3, 4), num_layers=2, bidirectional=True),
    c("GRU", 4, 5, on=[(6, 3, 4), (1, 3, 5)]), c("RNNCell", 4, 5, on=(3, 4)),
    c("LSTMCell", 4, 5, on=[(3, 4), ((3, 5), (3, 5))]), c("GRUCell", 4, 5, on=[(3, 4), (3, 5)]),
]  # fmt: skip
T = {"dropout": 0.0, "dim_feedforward": 16}
TRANSFORMERS = [
    c("TransformerEncoderLayer", 8, 2, on=(5, 3, 8), **T),
    c("TransformerEncoderLayer", 8, 2, on=(3, 5, 8), batch_first=True, norm_first=True,
      activation="gelu", **T),
    c("TransformerDecoderLayer", 8, 2, on=[(5, 3, 8), (4, 3, 8)], **T),
    c("TransformerDecoderLayer", 8, 2, on=[(5, 3, 8), (4, 3, 8)], norm_first=True, **T),
    c("Transformer", 8, 2, 2, 2, 16, 0.0, on=[(5, 3, 8), (4, 3, 8)]),
]  # fmt: skip
CASES = [
    *ACTIVATIONS, *LINEAR, *CONVOLUTIONS, *POOLS, *NORMS, *SHAPES, *RECURRENT, *TRANSFORMERS,
]  # fmt: skip


def random_tree(shape: Any, generator: np.random.Generator) -> Any:
    if shape and isinstance(shape[0], tuple):
        return tuple(random_tree(each, generator) for each in shape)
    return generator.standard_normal(shape).astype(np.float32)


def as_torch(tree: Any) -> Any:
    if isinstance(tree, tuple):
        return tuple(map(as_torch, tree))
    return torch.tensor(tree, requires_grad=True)


def as_weft(tree: Any) -> Any:
    return wf.tree.map_tree(lambda x: wf.tensor(x, requires_grad=True), tree)


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, (tuple, list)):
        return [leaf for each in tree for leaf in flat(each)]
    return [] if tree is None else [tree]


def close(ours: Any, theirs: Any, what: str) -> None:
    got, wanted = np.asarray(ours.detach().numpy()), theirs.detach().numpy()
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5, err_msg=what)


def theirs_and_ours(case: Case) -> tuple[Any, Any]:
    """Both layers, with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, case.name)(*case.args, **{**case.options, **case.theirs})
    ours = getattr(wf.nn, case.name)(*case.args, **case.options)
    state = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    found = ours.load_state_dict(state)
    assert found == ([], [])
    return theirs.train(case.training), ours.train(case.training)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_agrees_with_pytorch(case: Case) -> None:
    theirs, ours = theirs_and_ours(case)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    generator = np.random.default_rng(1)
    arrays = tuple(random_tree(shape, generator) for shape in case.inputs)
    their_inputs, our_inputs = as_torch(arrays), as_weft(arrays)
    wanted, got = flat(theirs(*their_inputs)), flat(ours(*our_inputs))
    assert len(wanted) == len(got)
    factors = [generator.standard_normal(tuple(w.shape)).astype(np.float32) for w in wanted]
    for w, g in zip(wanted, got, strict=True):
        close(g, w, "result")
    sum((w * torch.tensor(f)).sum() for w, f in zip(wanted, factors, strict=True)).backward()
    total = wf.zeros(())
    for g, f in zip(got, factors, strict=True):
        total = total + (g * wf.tensor(f)).sum()
    total.backward()
    for w, g in zip(flat(their_inputs), flat(our_inputs), strict=True):
        close(g.grad, w.grad, "gradient of an input")
    for (name, w), g in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        close(g.grad, w.grad, f"gradient of {name}")
    for (name, w), g in zip(theirs.named_buffers(), ours.buffers(), strict=True):
        close(g, w, name)


def pair(*shape: int, seed: int = 0) -> tuple[Any, Any]:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return wf.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)


def positive(x: Any) -> Any:
    return (x.sigmoid(),) if isinstance(x, tuple) else x.sigmoid()


LABELS = np.array([2, 0, 1, 2])
LOSSES: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    (name, name, ((4, 3), (4, 3)), options)
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    for options in ({}, {"reduction": "sum"}, {"reduction": "none"})
] + [
    ("huber_loss", "huber_loss", ((4, 3), (4, 3)), {"delta": 0.5}),
    ("smooth_l1_loss", "smooth_l1_loss", ((4, 3), (4, 3)), {"beta": 0.5}),
    ("cross_entropy", "cross_entropy", ((4, 3), LABELS), {}),
    ("cross_entropy", "cross_entropy", ((4, 3), LABELS), {"label_smoothing": 0.2}),
    ("cross_entropy", "cross_entropy", ((4, 3), LABELS), {"ignore_index": 2, "reduction": "none"}),
    ("cross_entropy", "cross_entropy", ((4, 3), LABELS),
     {"weight": [0.5, 2.0, 1.5], "label_smoothing": 0.1, "ignore_index": 0}),
    ("cross_entropy", "cross_entropy", ((4, 3), LABELS), {"weight": [0.5, 2.0, 1.5]}),
    ("cross_entropy", "cross_entropy", ((2, 3, 2), LABELS.reshape(2, 2)), {"reduction": "sum"}),
    ("cross_entropy", "cross_entropy", ((4, 3), "probabilities"), {"label_smoothing": 0.1}),
    ("cross_entropy", "cross_entropy", ((4, 3), "probabilities"), {"weight": [0.5, 2.0, 1.5]}),
    ("cross_entropy", "cross_entropy", ((3,), np.array(1)), {}),
    ("nll_loss", "nll_loss", ((4, 3), LABELS), {"weight": [0.5, 2.0, 1.5]}),
    ("binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits",
     ((4, 3), "probabilities"), {"pos_weight": [1.0, 2.0, 0.5]}),
    ("binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits",
     ((4, 3), "probabilities"), {"weight": [1.0, 2.0, 0.5], "reduction": "none"}),
    ("kl_div", "kl_div", ((4, 3), "probabilities"), {"reduction": "batchmean"}),
    ("kl_div", "kl_div", ((4, 3), (4, 3)), {"log_target": True}),
    ("poisson_nll_loss", "poisson_nll_loss", ((4, 3), "counts"), {"full": True}),
    ("gaussian_nll_loss", "gaussian_nll_loss", ((4, 3), (4, 3), "probabilities"), {"full": True}),
    ("hinge_embedding_loss", "hinge_embedding_loss", ((4, 3), "signs"), {"margin": 0.5}),
    ("soft_margin_loss", "soft_margin_loss", ((4, 3), "signs"), {}),
    ("margin_ranking_loss", "margin_ranking_loss", ((4, 3), (4, 3), "signs"), {"margin": 0.5}),
    ("cosine_embedding_loss", "cosine_embedding_loss", ((4, 3), (4, 3), "sign_row"),
     {"margin": 0.1}),
    ("triplet_margin_loss", "triplet_margin_loss", ((4, 3), (4, 3), (4, 3)), {"swap": True}),
    ("triplet_margin_loss", "triplet_margin_loss", ((4, 3), (4, 3), (4, 3)), {"p": 1.0}),
    ("multi_margin_loss", "multi_margin_loss", ((4, 3), LABELS), {"p": 2, "margin": 0.7}),
    ("multi_margin_loss", "multi_margin_loss", ((4, 3), LABELS), {"weight": [1.0, 2.0, 0.5]}),
    ("multilabel_soft_margin_loss", "multilabel_soft_margin_loss", ((4, 3), "probabilities"),
     {"weight": [1.0, 2.0, 0.5]}),
    ("multilabel_margin_loss", "multilabel_margin_loss",
     ((2, 3), np.array([[2, 0, -1], [1, -1, 0]])), {"reduction": "none"}),
]  # fmt: skip


def loss_input(spec: Any, seed: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    named = {
        "probabilities": lambda: generator.dirichlet(np.ones(3), 4).astype(np.float32),
        "counts": lambda: generator.integers(0, 5, (4, 3)).astype(np.float32),
        "signs": lambda: generator.choice([-1.0, 1.0], (4, 3)).astype(np.float32),
        "sign_row": lambda: generator.choice([-1.0, 1.0], 4).astype(np.float32),
    }
    if isinstance(spec, str):
        array = named[spec]()
        return wf.tensor(array), torch.tensor(array)
    if isinstance(spec, np.ndarray):
        return wf.tensor(spec), torch.tensor(spec)
    return pair(*spec, seed=seed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("row", LOSSES, ids=lambda row: f"{row[0]}-{row[3]}")
def test_a_loss_agrees_with_pytorch(row: Any, compiled: bool) -> None:
    name, their_name, specs, options = row
    both = [loss_input(spec, seed) for seed, spec in enumerate(specs)]
    ours, theirs = [b[0] for b in both], [b[1] for b in both]
    tensors = {k: v for k, v in options.items() if isinstance(v, list)}
    plain = {k: v for k, v in options.items() if k not in tensors}
    our_function = getattr(wf.nn.functional, name)
    held = {k: wf.tensor(v) for k, v in tensors.items()}

    def function(*xs: Any) -> Any:
        return our_function(*xs, **plain, **held)

    got = (wf.jit(function) if compiled else function)(*ours)
    wanted = getattr(torch.nn.functional, their_name)(
        *theirs, **plain, **{k: torch.tensor(v) for k, v in tensors.items()}
    )
    close(got, wanted, "loss")
    got.sum().backward()
    wanted.sum().backward()
    for g, w in zip(ours, theirs, strict=True):
        if w.requires_grad:
            close(g.grad, w.grad, "gradient")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_agrees_with_pytorch(reduction: str, blank: int) -> None:
    logits, their_logits = pair(9, 3, 5)
    targets = (
        np.array([[1, 1, 3, 4], [3, 4, 0, 0], [1, 3, 3, 0]])
        if blank == 2
        else np.array([[1, 1, 3, 4], [2, 4, 1, 1], [1, 3, 3, 1]])
    )
    lengths = np.array([9, 5, 7]), np.array([4, 2, 3])
    options = {"blank": blank, "reduction": reduction}
    arrays = (targets, *lengths)
    got = wf.nn.functional.ctc_loss(
        wf.log_softmax(logits), *[wf.tensor(a) for a in arrays], **options
    )
    wanted = torch.nn.functional.ctc_loss(
        their_logits.log_softmax(-1), *[torch.tensor(a) for a in arrays], **options
    )
    close(got, wanted, "loss")
    got.sum().backward()
    wanted.sum().backward()
    close(logits.grad, their_logits.grad, "gradient")


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_sequences_of_several_lengths_agree_with_packed_ones(kind: str) -> None:
    lengths = [6, 2, 4]
    case = Case(kind, (4, 5), {"num_layers": 2, "bidirectional": True})
    theirs, ours = theirs_and_ours(case)
    x, their_x = pair(6, 3, 4)
    packed = torch.nn.utils.rnn.pack_padded_sequence(their_x, lengths, enforce_sorted=False)
    wanted, their_state = theirs(packed)
    wanted, _ = torch.nn.utils.rnn.pad_packed_sequence(wanted)
    got, state = ours(x, lengths=wf.tensor(lengths))
    close(got, wanted, "outputs")
    for g, w in zip(flat(state), flat(their_state), strict=True):
        close(g, w, "state")
    (got * got).sum().backward()
    (wanted * wanted).sum().backward()
    close(x.grad, their_x.grad, "gradient")
    for g, w in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(g.grad, w.grad, "gradient of a weight")


MASKS = [
    {}, {"attn_mask": "bool"}, {"attn_mask": "float"}, {"key_padding_mask": "padding"},
    {"attn_mask": "bool", "key_padding_mask": "padding"}, {"attn_mask": "per_head"},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"kdim": 6, "vdim": 4}, {"bias": False, "batch_first": True}]
)
@pytest.mark.parametrize("masks", MASKS, ids=str)
def test_attention_agrees_with_pytorch(masks: Any, options: Any, need_weights: bool) -> None:
    theirs, ours = theirs_and_ours(Case("MultiheadAttention", (8, 2), options))
    arrays = {
        "bool": np.triu(np.ones((5, 4), bool), 2),
        "float": np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32),
        "padding": np.array([[False, False, True, True], [False] * 4, [False, True, False, False]]),
        "per_head": np.random.default_rng(3).random((6, 5, 4)) > 0.7,
    }
    arrays["per_head"][..., 0] = False
    order = (lambda t: (3, t)) if options.get("batch_first") else (lambda t: (t, 3))
    query, their_query = pair(*order(5), 8)
    key, their_key = pair(*order(4), options.get("kdim", 8), seed=1)
    value, their_value = pair(*order(4), options.get("vdim", 8), seed=2)
    got, weights = ours(
        query, key, value, need_weights=need_weights,
        **{name: wf.tensor(arrays[kind]) for name, kind in masks.items()},
    )  # fmt: skip
    wanted, their_weights = theirs(
        their_query, their_key, their_value, need_weights=need_weights,
        **{name: torch.tensor(arrays[kind]) for name, kind in masks.items()},
    )  # fmt: skip
    close(got, wanted, "output")
    if need_weights:
        close(weights, their_weights, "weights")
    (got * got).sum().backward()
    (wanted * wanted).sum().backward()
    for g, w in zip([query, key, value], [their_query, their_key, their_value], strict=True):
        close(g.grad, w.grad, "gradient of an input")
    for g, w in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(g.grad, w.grad, "gradient of a weight")


BAGS = [
    ("sum", [0, 2, 2], None), ("mean", [0, 2, 2], None), ("max", [0, 2, 2], None),
    ("mean", None, None), ("sum", [0, 3], [0.5, 2.0, -1.0, 1.0, 3.0]), ("mean", [0, 2], 3),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "offsets", "more"), BAGS, ids=str)
def test_bags_agree_with_pytorch(mode: str, offsets: Any, more: Any) -> None:
    options = {"padding_idx": more} if isinstance(more, int) else {}
    theirs, ours = theirs_and_ours(Case("EmbeddingBag", (6, 3), {"mode": mode, **options}))
    index = np.array([[1, 3, 3], [0, 5, 2]]) if offsets is None else np.array([1, 3, 3, 0, 5])
    extra = [] if offsets is None else [np.array(offsets)]
    if isinstance(more, list):
        extra.append(np.array(more, np.float32))
    got = ours(wf.tensor(index), *[wf.tensor(e) for e in extra])
    wanted = theirs(torch.tensor(index), *[torch.tensor(e) for e in extra])
    close(got, wanted, "bags")
    (got * got).sum().backward()
    (wanted * wanted).sum().backward()
    close(ours.weight.grad, theirs.weight.grad, "gradient")


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"max_norm": 0.5}])
def test_embeddings_agree_with_pytorch(options: Any) -> None:
    theirs, ours = theirs_and_ours(Case("Embedding", (6, 3), options))
    index = np.array([[1, 2, 2], [0, 5, 1]])
    got, wanted = ours(wf.tensor(index)), theirs(torch.tensor(index))
    close(got, wanted, "rows")
    close(ours.weight, theirs.weight, "table")
    (got * got).sum().backward()
    (wanted * wanted).sum().backward()
    close(ours.weight.grad, theirs.weight.grad, "gradient")


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("uniform_", (300, 40), {"a": -1.0, "b": 3.0}), ("normal_", (300, 40), {"mean": 1.0}),
        ("trunc_normal_", (300, 40), {"std": 2.0}), ("xavier_uniform_", (300, 40), {"gain": 2.0}),
        ("xavier_normal_", (300, 10, 4), {}), ("kaiming_uniform_", (300, 10, 4), {"a": 1.0}),
        ("kaiming_normal_", (300, 40), {"mode": "fan_out", "nonlinearity": "relu"}),
        ("orthogonal_", (30, 40), {"gain": 2.0}),
    ],
)  # fmt: skip
def test_initial_values_are_distributed_as_pytorchs(name: str, shape: Any, options: Any) -> None:
    torch.manual_seed(0)
    wf.random.seed(0)
    wanted = getattr(torch.nn.init, name)(torch.empty(shape), **options).numpy()
    got = getattr(wf.nn.init, name)(wf.empty(shape), **options).numpy()
    assert abs(got.mean() - wanted.mean()) < 0.1 * wanted.std()
    assert abs(got.std() / wanted.std() - 1) < 0.05
    assert got.max() == pytest.approx(wanted.max(), rel=0.25)
