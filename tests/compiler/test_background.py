"""Work beside the caller's thread, groups that are lowered once, and what is compiled ahead."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, get_ident

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft.compiler.fusion.grouping import group
from weft.compiler.lowering.groups import context_of, is_lowered, lower
from weft.compiler.targets.cpu.cache import kernels
from weft.compiler.targets.cpu.engine import emit_kernel, emit_text, kernel_text
from weft.compiler.targets.cpu.target import CPU
from weft.core.dtypes import float32, float64
from weft.ir.loops import For, Kernel, Store
from weft.ir.scalars import Buffer, Scalar, const, exp, index, size
from weft.runtime.compile_queue import BACKGROUND, Background
from weft.runtime.no_gc import pause_collection


@pytest.fixture(autouse=True)
def _no_other_queue() -> None:
    """Wait for the library's queue: two at once give back each other's switching interval."""
    wait_for_quiet()
    sys.setswitchinterval(0.005)


def test_results_come_from_the_queue_and_errors_reach_who_asks() -> None:
    queue = Background(2)
    assert [queue.submit(lambda n=n: n * n).result() for n in range(20)] == [
        n * n for n in range(20)
    ]
    with pytest.raises(ZeroDivisionError):
        queue.submit(lambda: 1 // 0).result()
    queue.finish()


def test_what_nobody_has_begun_is_done_by_who_asks() -> None:
    queue, held = Background(1), Event()
    first = queue.submit(held.wait)
    second = queue.submit(get_ident)
    assert second.result() == get_ident()
    held.set()
    assert first.result()
    queue.finish()


def test_what_may_be_done_later_waits_for_all_else() -> None:
    queue, held, seen = Background(1), Event(), []
    queue.submit(held.wait)
    queue.submit(lambda: seen.append("later"), later=True)
    queue.submit(lambda: seen.append("now"))
    held.set()
    queue.finish()
    assert seen == ["now", "later"]


def test_the_interpreter_switches_as_before_when_all_is_done() -> None:
    before, queue, held = sys.getswitchinterval(), Background(1), Event()
    queue.submit(held.wait)
    assert sys.getswitchinterval() < before
    held.set()
    queue.finish()
    assert sys.getswitchinterval() == before


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_waits_for_the_work_and_the_child_can_compile() -> None:
    code = (
        "import os, time, weft as wf\n"
        "from weft.runtime.compile_queue import BACKGROUND\n"
        "task = BACKGROUND.submit(lambda: time.sleep(0.1) or 1)\n"
        "child = os.fork()\n"
        "assert task.is_done\n"
        "value = wf.jit(lambda x: wf.sin(x) * 3)(wf.zeros(5)).tolist()\n"
        "assert value == [0.0] * 5\n"
        "if child == 0:\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    environment = {**os.environ, "WEFT_CACHE": "off", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)


@pytest.mark.slow
def test_entries_are_on_disk_when_a_process_has_ended(tmp_path: Path) -> None:
    code = "import weft as wf; wf.jit(lambda x: wf.sin(x) @ x)(wf.ones((8, 8)))"
    environment = {**os.environ, "WEFT_CACHE": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)
    names = [path.name for path in (tmp_path / "cache").iterdir()]
    assert len(names) >= 3
    assert not [name for name in names if name.endswith(".part")]


def scaled(factor: float, name: str = "k") -> Kernel:
    x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
    return Kernel(name, (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i] * factor),)),))


def test_kernels_that_are_compiled_side_by_side_are_the_same_as_one_after_the_other() -> None:
    texts = [kernel_text(scaled(float(n), f"k{n}")) for n in range(12)]
    module = "define i64 @weft.f(i64 %x) {\n  %y = mul i64 %x, 3\n  ret i64 %y\n}\n"
    alone = [emit_kernel(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        mixed = [pool.submit(emit_text, module) for _ in range(4)]
        futures = [pool.submit(emit_kernel, text) for text in texts]
        assert [future.result() for future in futures] == alone
        assert len({future.result() for future in mixed}) == 1


def test_kernels_of_one_program_are_loaded_together_and_found_singly() -> None:
    several = [scaled(1.5 + n) for n in range(5)]
    codes = kernels.kernel_codes(several)
    assert len({id(code.engine) for code in codes}) == 1
    assert len({code.address for code in codes}) == 5
    assert kernels.code_of(several[3].digest) is codes[3]
    assert kernels.codes_of([several[0].digest, "0" * 32]) == [codes[0], None]


def test_collection_is_put_back_after_nested_blocks() -> None:
    assert gc.isenabled()
    outer = pause_collection()
    inner = pause_collection()
    assert not gc.isenabled()
    assert (outer, inner) == (True, False)
    gc.enable()
    wf.jit(lambda x: x * 2)(wf.ones(3))
    assert gc.isenabled()


def kernel_digest(value: Scalar) -> str:
    i = index("i")
    stores = (Store(Buffer("y", value.dtype, "write"), i, value),)
    return Kernel("k", (), ("n",), (For(i, size("n"), stores, "vector"),)).digest


def test_digests_tell_numbers_dtypes_and_sharing_apart() -> None:
    x, i = Buffer("x", float32), index("i")
    wide = Buffer("x", float64)
    values = [
        x[i] * 0.0, x[i] * -0.0, x[i] * 1.0, x[i + 1] * 1.0, wide[i] * 1.0, x[i] * float("nan"),
        exp(x[i]), exp(x[i]) + exp(x[i]), exp(x[i]) + x[i],
        const(1.0, float32), const(1.0, float64),
    ]  # fmt: skip
    assert len({kernel_digest(value) for value in values}) == len(values)


def test_layers_are_lowered_once_and_bound_to_their_own_values() -> None:
    def net(x: wf.Tensor, *weights: wf.Tensor) -> wf.Tensor:
        for w in weights:
            x = wf.nn.functional.gelu(x @ w) + x
        return x

    types = [wf.spec("float32", (16, 16))] * 5
    graph = wf.ir.trace(net, *types)
    context = context_of(graph, CPU.limits.lowering)
    groups = [
        step for step in group(graph, is_lowered, CPU.limits.fusion) if hasattr(step, "roots")
    ]
    made = [lower(each, context, f"k{n}") for n, each in enumerate(groups)]
    assert len(context.made) < len(groups)
    assert [each.kernel.name for each in made] == [f"k{n}" for n in range(len(groups))]
    fresh = [lower(each, context_of(graph, CPU.limits.lowering), "k") for each in groups]
    for one, other in zip(made, fresh, strict=True):
        assert one.kernel.digest == other.kernel.digest
        assert one.values == other.values
        assert (one.written, one.in_place, one.by_rows) == (
            other.written,
            other.in_place,
            other.by_rows,
        )


def test_groups_that_differ_in_the_sign_of_zero_alone_are_not_alike(
    rng: np.random.Generator,
) -> None:
    def both(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        y = wf.sin(x) @ x
        return wf.copysign(wf.abs(x), wf.full((4, 4), 0.0)), wf.copysign(
            wf.abs(y), wf.full((4, 4), -0.0)
        )

    x = wf.asarray(rng.standard_normal((4, 4)).astype(np.float32))
    first, second = wf.jit(both)(x)
    assert (first.numpy() >= 0).all()
    assert (second.numpy() <= 0).all()
    BACKGROUND.finish()
