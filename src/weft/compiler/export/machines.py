"""The machines that programs are exported for, by name.

>>> machine_for("aarch64-linux").triple, machine_for("wasm32").address_bytes
('aarch64-unknown-linux-gnu', 4)
"""

from __future__ import annotations

from weft.compiler.targets.cpu.machine import LEVELS, host, machine_of
from weft.compiler.targets.llvm.machine import Machine
from weft.core.errors import ArgumentError
from weft.core.names import nearest_name
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
    program: str = ""
    """How the name of a program ends."""
    board: str = ""
    """What the emulator of a machine without a system calls it."""

    @property
    def machine(self) -> Machine:
        """What code is generated for."""
        return machine_of(self.triple, self.processor, self.has, self.abi)


def _x86(level: str) -> Platform:
    # qemu has no registers of 512 bits
    emulators = () if level == "x86-64-v4" else ("qemu-x86_64-static", "qemu-x86_64")
    return Platform(
        "x86_64-unknown-linux-gnu", level, LEVELS[level], compilers=("x86_64-linux-gnu-gcc",),
        zig="x86_64-linux-gnu", emulators=emulators,
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
        compilers=("arm-none-eabi-gcc",), shared="",
        options=("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-mthumb"),
        board="mps2-an386",
    ),
    "x86-64-windows": Platform(
        "x86_64-w64-windows-gnu", "x86-64-v3", LEVELS["x86-64-v3"],
        compilers=("x86_64-w64-mingw32-gcc",), zig="x86_64-windows-gnu", shared=".dll",
        emulators=("wine", "wine64"), program=".exe",
    ),
    "aarch64-macos": Platform(
        "arm64-apple-macosx11.0.0", "apple-m1", zig="aarch64-macos", shared=".dylib",
    ),
}  # fmt: skip
"""The machines by name, for those whose code is made for them and not for this one."""


_OTHER_WORDS = {
    "mac": "aarch64-macos", "darwin": "aarch64-macos", "apple": "aarch64-macos",
    "win": "x86-64-windows", "wasm": "wasm32", "web": "wasm32", "browser": "wasm32",
    "cortex": "thumbv7em", "thumb": "thumbv7em", "riscv": "riscv64-linux",
    "x86-64-v2": "x86-64-v2-linux", "x86-64-v3": "x86-64-v3-linux",
    "x86-64-v4": "x86-64-v4-linux", "x86-64": "x86-64-linux", "amd64": "x86-64-linux",
    "aarch64": "aarch64-linux", "arm64": "aarch64-linux",
    "native": HOST, "linux": HOST,
}  # fmt: skip
"""Machines by words that others call them; the first that fits counts."""


def machine_for(target: str) -> Machine:
    """The machine of a name; one that is not known is refused with the names that are."""
    return host() if target == HOST else platform_named(target).machine


def platform_named(target: str) -> Platform:
    """What is known of a machine."""
    if target == HOST:
        return _host_platform()
    if target not in PLATFORMS:
        meant = _nearest_target(str(target))
        raise ArgumentError(
            "export",
            f"no machine is called {target!r}",
            expected="one of " + ", ".join([HOST, *PLATFORMS]),
            got={"target": repr(target)},
            note=f"did you mean {meant!r}?" if meant else "",
            fix=f'target="{meant or "aarch64-linux"}"',
        )
    return PLATFORMS[target]


def _nearest_target(target: str) -> str | None:
    """The machine that a word stands for elsewhere, or the one that is spelt nearly so.

    >>> [_nearest_target(word) for word in ("arm64", "AArch64-Linux", "wasm", "x86_64", "toaster")]
    ['aarch64-linux', 'aarch64-linux', 'wasm32', 'x86-64-linux', None]
    """
    word = target.lower().replace("x86_64", "x86-64")
    for stem, meant in _OTHER_WORDS.items():
        if stem in word:
            return meant
    return nearest_name(word, PLATFORMS) or None


def _host_platform() -> Platform:
    machine = host()
    has = frozenset(each[1:] for each in machine.features.split(",") if each.startswith("+"))
    family = machine.triple.split("-")[0]
    shared = ".dylib" if "apple" in machine.triple else ".so"
    zig = f"{family}-linux-gnu" if "linux" in machine.triple else ""
    return Platform(machine.triple, machine.processor, has, shared=shared, zig=zig)
