"""A machine as LLVM's targets see it: what code is generated for.

>>> Machine("x86_64-unknown-linux-gnu", "generic", "+avx2,+fma", 8, False, True).has_feature("fma")
True
"""

from __future__ import annotations

from weft.core.records import frozen

ARM = ("aarch64", "arm64")
"""How the triples of ARM's 64-bit processors begin."""
SHORT = ("wasm32", "thumb", "arm-", "armv7", "i386", "i686", "riscv32")
"""How the triples of machines with addresses of 32 bits begin."""


@frozen
class Machine:
    """A processor: `width` is the lanes of a vector, whatever the dtype; LLVM splits wide ones.

    masked: whether the last vector of a loop is a masked one; otherwise the rest is scalar.
    half: whether there are instructions that convert float16.
    permuted: the widths of vectors of float32 that have an instruction to permute them by index.
    """

    triple: str
    processor: str
    features: str
    width: int
    masked: bool
    half: bool
    permuted: tuple[int, ...] = ()
    abi: str = ""
    """How functions are called, where LLVM does not take that from the triple."""

    def has_feature(self, feature: str) -> bool:
        """Whether there is what LLVM calls by this name."""
        return f"+{feature}" in self.features.split(",")

    @property
    def is_arm(self) -> bool:
        """Whether it is of the ARM kind, and not x86."""
        return self.triple.startswith(ARM)

    @property
    def address_bytes(self) -> int:
        """The bytes of an address."""
        return 4 if self.triple.startswith(SHORT) else 8

    @property
    def registers(self) -> int:
        """How many vectors it holds."""
        return 32 if self.is_arm or self.width == 16 else 16

    @property
    def fuses_multiply_add(self) -> bool:
        """Whether it multiplies and adds with one rounding."""
        return self.is_arm or self.has_feature("fma") or self.triple.startswith("riscv")
