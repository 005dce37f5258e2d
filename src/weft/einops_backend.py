"""Plain `einops.rearrange(t, "b c h w -> b (c h w)")` on tensors, eager and traced.

einops asks the subclasses of its `AbstractBackend` whether a tensor is theirs. Ours is made when
einops is imported, before or after Weft: until then a finder waits for that one module, so that
`import weft` does not import einops.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["watch_einops"]

MODULE = "einops._backends"


def watch_einops() -> None:
    """Make tensors known to einops, now if it is imported, else as soon as it is."""
    module = sys.modules.get(MODULE)
    if module is not None:
        add_backend(module)
    elif not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def add_backend(module: ModuleType) -> None:
    """Define the backend as a subclass of the one in einops's module."""
    base: Any = getattr(module, "AbstractBackend", None)
    if base is None or any(each.framework_name == "weft" for each in base.__subclasses__()):
        return

    class WeftBackend(base):  # type: ignore[misc]
        """What einops does to tensors, in Weft's functions."""

        framework_name = "weft"

        def __init__(self) -> None:
            self.wf: Any = sys.modules["weft"]

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, self.wf.Tensor)

        def from_numpy(self, x: Any) -> Any:
            return self.wf.asarray(x)

        def to_numpy(self, x: Any) -> Any:
            return x.detach().numpy()

        def arange(self, start: int, stop: int) -> Any:
            return self.wf.arange(start, stop)

        def reshape(self, x: Any, shape: Sequence[Any]) -> Any:
            return self.wf.reshape(x, tuple(shape))

        def transpose(self, x: Any, axes: Sequence[int]) -> Any:
            return self.wf.permute_dims(x, tuple(axes))

        def reduce(self, x: Any, operation: str, axes: Sequence[int]) -> Any:
            return getattr(self.wf, operation)(x, axis=tuple(axes))

        def stack_on_zeroth_dimension(self, tensors: list[Any]) -> Any:
            return self.wf.stack(tensors)

        def add_axis(self, x: Any, new_position: int) -> Any:
            return self.wf.expand_dims(x, axis=new_position)

        def tile(self, x: Any, repeats: Sequence[int]) -> Any:
            return self.wf.tile(x, tuple(repeats))

        def concat(self, tensors: list[Any], axis: int) -> Any:
            return self.wf.concat(tensors, axis=axis)

        def is_float_type(self, x: Any) -> bool:
            return bool(x.dtype.is_inexact)

        def einsum(self, pattern: str, *x: Any) -> Any:
            return self.wf.einsum(pattern, *x)

    module.WeftBackend = WeftBackend  # type: ignore[attr-defined]  # its base holds it weakly


class _Finder(MetaPathFinder):
    """Waits for einops's module of backends, and lets all else pass."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec that others find, whose loader also adds our backend."""
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Another loader, after which our backend is added."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `Loader`."""
        module: ModuleType | None = self.inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and add our backend to it."""
        self.inner.exec_module(module)
        add_backend(module)
