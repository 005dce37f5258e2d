"""The machines that programs are exported for, by name.

>>> machine_for("aarch64-linux").triple, machine_for("wasm32").address_bytes
('aarch64-unknown-linux-gnu', 4)
"""

from __future__ import annotations

from weft.compiler.targets.cpu.machine import LEVELS, host, machine_of
from weft.compiler.targets.llvm.machine import Machine
from weft.core.errors import ArgumentError
from weft.core.records import frozen

HOST = "host"
"""The name of this machine, with all that its processor has."""


@frozen
class Platform:
    """A machine with a name: what LLVM calls it, and what programs for it are linked and run by."""

    triple: str
    processor: str
    has: frozenset[str] = frozenset()
    abi: str = ""
    compilers: tuple[str, ...] = ()
    """C compilers that link for it, the first that is found."""
    zig: str = ""
    """What `zig cc -target` calls it."""
    emulators: tuple[str, ...] = ()
    """Programs that run its programs elsewhere."""
    options: tuple[str, ...] = ()
    """What the C compiler is told beside."""
    shared: str = ".so"
    """How the name of a shared library ends; empty where there is none."""
    board: str = ""
    """What the emulator of a machine without a system calls it."""

    @property
    def machine(self) -> Machine:
        """What code is generated for."""
        return machine_of(self.triple, self.processor, self.has, self.abi)


def _x86(level: str) -> Platform:
    return Platform(
        "x86_64-unknown-linux-gnu", level, LEVELS[level], compilers=("x86_64-linux-gnu-gcc",),
        zig="x86_64-linux-gnu", emulators=("qemu-x86_64-static", "qemu-x86_64"),
    )  # fmt: skip


PLATFORMS: dict[str, Platform] = {
    "x86-64-linux": _x86("x86-64"),
    "x86-64-v2-linux": _x86("x86-64-v2"),
    "x86-64-v3-linux": _x86("x86-64-v3"),
    "x86-64-v4-linux": _x86("x86-64-v4"),
    "aarch64-linux": Platform(
        "aarch64-unknown-linux-gnu", "generic", compilers=("aarch64-linux-gnu-gcc",),
        zig="aarch64-linux-gnu", emulators=("qemu-aarch64-static", "qemu-aarch64"),
    ),
    "riscv64-linux": Platform(
        "riscv64-unknown-linux-gnu", "generic-rv64", frozenset("macfd"), "lp64d",
        ("riscv64-linux-gnu-gcc",), "riscv64-linux-musl",
        ("qemu-riscv64-static", "qemu-riscv64"),
    ),
    "wasm32": Platform(
        "wasm32-unknown-unknown", "generic", frozenset(["simd128", "bulk-memory"]),
        compilers=("wasm-ld", "wasm-ld-14"), zig="wasm32-freestanding", shared=".wasm",
    ),
    "thumbv7em": Platform(
        "thumbv7em-unknown-none-eabihf", "cortex-m4", frozenset(["vfp4d16sp"]),
        compilers=("arm-none-eabi-gcc",), zig="thumb-freestanding-eabihf", shared="",
        options=("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-mthumb"),
        board="mps2-an386",
    ),
    "x86-64-windows": Platform(
        "x86_64-w64-windows-gnu", "x86-64-v3", LEVELS["x86-64-v3"],
        compilers=("x86_64-w64-mingw32-gcc",), zig="x86_64-windows-gnu", shared=".dll",
    ),
    "aarch64-macos": Platform(
        "arm64-apple-macosx11.0.0", "apple-m1", zig="aarch64-macos", shared=".dylib",
    ),
}  # fmt: skip
"""The machines by name, for those whose code is made for them and not for this one."""


def machine_for(target: str) -> Machine:
    """The machine of a name; one that is not known is refused with the names that are."""
    return host() if target == HOST else platform_named(target).machine


def platform_named(target: str) -> Platform:
    """What is known of a machine."""
    if target == HOST:
        return _host_platform()
    if target not in PLATFORMS:
        raise ArgumentError(
            "export",
            f"no machine is called {target!r}",
            expected="one of " + ", ".join([HOST, *PLATFORMS]),
            got={"target": repr(target)},
            fix='target="aarch64-linux"',
        )
    return PLATFORMS[target]


def _host_platform() -> Platform:
    machine = host()
    has = frozenset(each[1:] for each in machine.features.split(",") if each.startswith("+"))
    shared = ".dylib" if "apple" in machine.triple else ".so"
    return Platform(machine.triple, machine.processor, has, shared=shared)
