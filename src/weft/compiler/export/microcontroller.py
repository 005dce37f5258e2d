"""Programs on a bare Cortex-M: what starts them, where they lie, and the emulator of a board.

The board is emulated by `qemu-system-arm`; files are the host's, by semihosting, so that the same
`main.c` runs there.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from weft.core.errors import UnsupportedError

STARTUP = """\
/* The first lines of a program: vectors, the unit for floats, and on to the C library. */
#include <stdint.h>

extern void _start(void);
extern char stack_top[];

void reset(void)
{
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* the floating-point unit */
    __asm volatile("dsb\\nisb");
    _start();
}

static void stop(void)
{
    for (;;)
        ;
}

__attribute__((section(".vectors"), used)) void (*const vectors[16])(void) = {
    (void (*)(void))stack_top, reset, stop, stop, stop, stop, stop};
"""
LINKING = """\
MEMORY {
    FLASH (rx) : ORIGIN = 0, LENGTH = 4M
    RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 4M
}
ENTRY(reset)
SECTIONS {
    .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) KEEP(*(.init)) KEEP(*(.fini)) } > FLASH
    .ARM.exidx : { *(.ARM.exidx*) } > FLASH
    .data : { *(.data*) } > RAM
    .bss : { __bss_start__ = .; *(.bss*) *(COMMON) __bss_end__ = .; } > RAM
    end = .;
    __end__ = .;
    stack_top = ORIGIN(RAM) + LENGTH(RAM);
    __stack = stack_top;
}
"""


def write_board_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Write what a program on the board needs beside its own files; sources and options."""
    (folder / "startup.c").write_text(STARTUP)
    (folder / "board.ld").write_text(LINKING)
    options = ["--specs=rdimon.specs", "-T", str(folder / "board.ld"), "-Wl,--no-warnings"]
    return [folder / "startup.c"], options


def board_command(board: str, program: Path, arguments: Sequence[str]) -> list[str]:
    """The command that runs a program on an emulated board."""
    emulator = shutil.which("qemu-system-arm")
    if emulator is None:
        raise UnsupportedError(
            "export",
            "no board of this kind is here, and no emulator of one",
            expected="qemu-system-arm",
            got={"board": board},
            fix="install qemu-system-arm",
        )
    given = ",".join(f"arg={each}" for each in ("main", *arguments))
    semihosting = f"enable=on,target=native,{given}"
    quiet = ["-nographic", "-monitor", "none", "-serial", "none"]
    return [
        emulator,
        "-M",
        board,
        *quiet,
        "-semihosting-config",
        semihosting,
        "-kernel",
        str(program),
    ]
