"""LoRA: fine-tuning by a product of two thin matrices beside each frozen weight.

>>> import weft as wf
>>> from weft.models import MLP, add_lora, merge_lora
>>> net = add_lora(MLP([8, 16, 4]), rank=2, targets=("layers.0",))
>>> [name for name, p in net.named_parameters() if p.requires_grad]
['layers.0.lora_A', 'layers.0.lora_B']
>>> merge_lora(net).layers[0]
Linear(in_features=8, out_features=16, bias=True, activation='relu')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any, TypeVar

import weft as wf
from weft import nn
from weft.models.gpt import TransposedLinear
from weft.nn import functional as F  # noqa: N812

Net = TypeVar("Net", bound=nn.Module)


class LoRALinear(nn.Module):
    """A frozen layer, and beside it x Aᵀ Bᵀ alpha / rank; B begins as zeros, so nothing changes.

    >>> layer = nn.Linear(3, 2)
    >>> x = wf.ones((1, 3))
    >>> LoRALinear(layer, rank=1)(x).tolist() == layer(x).tolist()
    True
    """

    def __init__(self, layer: Any, rank: int = 8, alpha: float = 16.0) -> None:
        if rank < 1:
            raise wf.ArgumentError(
                "LoRALinear",
                "the rank is not positive",
                expected="rank >= 1",
                got={"rank": rank},
                fix="rank=8",
            )
        rows, columns = layer.weight.shape
        self.transposed = isinstance(layer, TransposedLinear)
        outs, ins = (columns, rows) if self.transposed else (rows, columns)
        self.scale = alpha / rank
        self.base = layer.requires_grad_(False)
        self.lora_A = nn.Parameter(wf.empty((rank, ins), dtype=layer.weight.dtype))
        self.lora_B = nn.Parameter(wf.zeros((outs, rank), dtype=layer.weight.dtype))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[..., in] -> [..., out]."""
        added = F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scale
        activation = getattr(self.base, "activation", None)
        if activation is None:
            y: wf.Tensor = self.base(x)
            return y + added
        return F.activate(activation, F.linear(x, self.base.weight, self.base.bias) + added)

    def merged(self) -> Any:
        """The layer with the product added to its weight, thawed."""
        with wf.no_grad():
            product = self.lora_B @ self.lora_A * self.scale  # [out, in]
            self.base.weight += product.T if self.transposed else product
        return self.base.requires_grad_(True)


def add_lora(net: Net, rank: int = 8, alpha: float = 16.0, targets: Sequence[str] = ("*",)) -> Net:
    """Freeze a network and put LoRA beside its linear layers whose dotted names fit a pattern.

    targets: names such as "h.*.attn.c_attn" or "*q_proj". The network itself is changed.

    >>> from weft.models import MLP
    >>> net = add_lora(MLP([8, 4, 2]), rank=1)
    >>> sum(p.size for p in net.parameters() if p.requires_grad)  # 1·(8 + 4) + 1·(4 + 2)
    18
    """
    layers = [
        name
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear | TransposedLinear)
        and any(fnmatch(name, target) for target in targets)
    ]
    if not layers or layers == [""]:
        raise wf.ArgumentError(
            "add_lora",
            "no linear layer of the network fits",
            expected="patterns of dotted names of linear layers",
            got={"targets": list(targets)},
            fix="look at the names: [name for name, _ in net.named_modules()]",
        )
    net.requires_grad_(False)
    for name in layers:
        _replace(net, name, LoRALinear(net.get_submodule(name), rank, alpha))
    return net


def merge_lora(net: Net) -> Net:
    """Put every product into the weight it stands beside, and thaw the network."""
    wrapped = [name for name, each in net.named_modules() if isinstance(each, LoRALinear)]
    for name in wrapped:
        layer: Any = net.get_submodule(name)
        _replace(net, name, layer.merged())
    return net.requires_grad_(True)


def lora_parameters(net: nn.Module) -> dict[str, wf.Tensor]:
    """What was added, by name: the only weights that have to be saved.

    >>> from weft.models import MLP
    >>> list(lora_parameters(add_lora(MLP([2, 2]), rank=1)))
    ['layers.0.lora_A', 'layers.0.lora_B']
    """
    ours = ("lora_A", "lora_B")
    return {name: p for name, p in net.named_parameters() if name.rpartition(".")[2] in ours}


def _replace(net: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(net.get_submodule(owner), last, module)
