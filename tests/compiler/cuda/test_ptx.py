"""Kernels become PTX for cards, and ptxas takes it, on any machine; no card is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.compiler import kernels as shared
from tests.compiler.cuda.sample_kernels import program_of, sample_kernels
from tests.nightly import NIGHTLY

import weft as wf
from weft.compiler.targets.cuda.machine import card
from weft.compiler.targets.cuda.nvptx import kernels_to_ptx, text_to_ptx
from weft.core.dtypes import DTYPES, DType, float32
from weft.ir import scalars
from weft.ir.loops import For, Kernel, Store
from weft.ir.scalars import INSTRUCTIONS, Buffer, index, size

PROCESSORS = ("sm_80", "sm_90a")
BATCH = 80
CONSTRUCTOR = {"and": scalars.and_, "or": scalars.or_, "not": scalars.not_}
ASSEMBLER = shutil.which("ptxas")
needs_assembler = pytest.mark.skipif(ASSEMBLER is None, reason="ptxas is not installed here")


def assembled(
    batches: Sequence[Sequence[Kernel]], folder: Path, processors: Sequence[str] = PROCESSORS
) -> int:
    """How many kernels ptxas has taken, for each processor; it runs beside the next batch's PTX."""

    def assemble(source: Path, processor: str) -> str:
        target = source.with_suffix(f".{processor}.cubin")
        command = [ASSEMBLER or "", f"-arch={processor}", "-O0", str(source), "-o", str(target)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"{found.returncode} {found.stdout}{found.stderr}"

    entries, jobs = 0, []
    with ThreadPoolExecutor(2) as pool:
        for number, batch in enumerate(batches):
            text = kernels_to_ptx(batch)
            entries += text.count(".visible .entry")
            source = folder / f"{number}.ptx"
            source.write_text(text)
            jobs += [pool.submit(assemble, source, processor) for processor in processors]
    for job in jobs:
        assert job.result().startswith("0 "), job.result()
    return entries


def one_kernel(function: object, *types: object) -> Kernel:
    """The one kernel of a function."""
    (lowered,) = program_of(function, types).lowered  # type: ignore[arg-type]
    return lowered.kernel


@pytest.mark.slow
@needs_assembler
def test_the_kernels_of_every_primitives_samples_assemble(tmp_path: Path) -> None:
    every = [kernel for _, kernel in sample_kernels().values()]
    assert len(every) > 500
    batches = [every[start : start + BATCH] for start in range(0, len(every), BATCH)]
    assert assembled(batches, tmp_path, PROCESSORS[:1]) == len(every)
    # the text is the same for both processors; what a newer one takes otherwise is in few of them
    few = every if NIGHTLY else every[::8]
    assert assembled([few], tmp_path, PROCESSORS[1:]) == len(few)


def every_instruction() -> list[Kernel]:
    """A kernel for each instruction and dtype that it takes, and for each cast."""
    found, i = [], index("i")

    def add(name: str, inputs: list[Buffer], value: scalars.Scalar) -> None:
        out = Buffer("out", value.dtype, "write")
        body = (For(i, size("n"), (Store(out, i, value),), "parallel vector"),)
        found.append(Kernel(name, (*inputs, out), ("n",), body))

    for name, instruction in INSTRUCTIONS.items():
        for dtype in sorted(instruction.dtypes, key=str):
            inputs = [Buffer(f"x{k}", dtype) for k in range(instruction.arity)]
            make = CONSTRUCTOR.get(name) or getattr(scalars, name)
            add(f"{name}_{dtype}", inputs, make(*[x[i] for x in inputs]))
    real = [dtype for dtype in DTYPES if not dtype.is_complex]
    for source in real:
        for target in real:
            x = Buffer("x", source)
            add(f"cast_{source}_{target}", [x], scalars.cast(x[i], target))
    return found


@pytest.mark.slow
@needs_assembler
def test_every_instruction_assembles_for_every_dtype(tmp_path: Path) -> None:
    every = every_instruction()
    batches = [every[start : start + 150] for start in range(0, len(every), 150)]
    assert assembled(batches, tmp_path, PROCESSORS[:1]) == len(every)


def test_elements_of_16_bits_are_touched_16_bytes_at_a_time() -> None:
    kernel = one_kernel(lambda x: wf.gelu(x, approximate="tanh"), wf.spec("bfloat16", (64, 64)))
    text = kernels_to_ptx([kernel])
    assert "ld.global.v4.b32" in text
    assert "st.global.v4.b32" in text
    assert "cvt.rn.bf16x2.f32" in text


def test_a_row_is_read_once_and_kept_in_registers() -> None:
    kernel = one_kernel(lambda x: wf.softmax(x, axis=-1), wf.spec("float32", (64, 768)))
    text = kernels_to_ptx([kernel])
    assert len(re.findall(r"ld\.global", text)) == 768 // 32 // 4
    assert len(re.findall(r"st\.global", text)) == 768 // 32 // 4
    assert not re.findall(r"(ld|st)\.(shared|local)", text)


def test_products_and_sums_are_not_contracted() -> None:
    kernel = one_kernel(lambda x, y: x * y + 1.5, *[wf.spec("float32", (64,))] * 2)
    text = kernels_to_ptx([kernel])
    assert "mul.rn.f32" in text
    assert "add.rn.f32" in text
    assert "fma" not in text


@pytest.mark.parametrize("columns", [100, 768, 1000, 5000, 40000])
def test_sums_are_made_without_atomics(columns: int) -> None:
    kernel = one_kernel(lambda x: x.sum(axis=-1), wf.spec("float32", (16, columns)))
    text = kernels_to_ptx([kernel])
    assert "shfl.sync.bfly" in text
    assert "atom" not in text
    assert "\tred." not in text


@needs_assembler
def test_kernels_with_sizes_known_only_at_run_time_assemble(tmp_path: Path) -> None:
    every = [
        shared.softmax(), shared.moments(), shared.column_sums(), shared.transposed_sum(),
        shared.padded(), shared.gathered(), shared.scanned(),
    ]  # fmt: skip
    assert assembled([every], tmp_path) == len(every)


def test_what_no_element_changes_is_computed_before_vectors_and_rests_part_ways() -> None:
    out = Buffer("out", float32, "write")
    i = index("i")
    same = scalars.sin(scalars.cast(size("count"), float32))
    body = (Store(out, i, same),)
    loop = For(i, size("count"), body, "parallel vector")
    kernel = Kernel("constant", (out,), ("count",), (loop,))
    assert kernels_to_ptx([kernel]).count(".visible .entry") == 1


def test_a_module_names_the_processor_that_it_is_for() -> None:
    kernel = one_kernel(lambda x: x + 1.0, wf.spec("float32", (64,)))
    assert ".target sm_90" in kernels_to_ptx([kernel], card("sm_90"))
    assert ".target sm_80" in kernels_to_ptx([kernel])


def test_a_text_that_is_not_llvms_is_refused() -> None:
    with pytest.raises(RuntimeError, match="parsing error"):
        text_to_ptx("define nothing")


@pytest.mark.parametrize("dtype", [float32])
def test_names_of_kernels_do_not_change_their_code(dtype: DType) -> None:
    x, y, i = Buffer("x", dtype), Buffer("y", dtype, "write"), index("i")
    body = (For(i, size("n"), (Store(y, i, x[i]),), "parallel vector"),)
    texts = [kernels_to_ptx([Kernel(name, (x, y), ("n",), body)]) for name in ("a", "b")]
    assert texts[0].replace("weft_a", "weft_b") == texts[1]
