"""Operations whose kernels are functions of a shared library."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.custom.operators import COMPILER, EXAMPLE, built, clean_names, example_library

import weft as wf
from weft.compiler.function.program_cache import executable
from weft.compiler.targets.cpu.cache.program_store import freeze_program, thaw_program
from weft.compiler.targets.cpu.target import compile_program
from weft.custom import elementwise, native
from weft.runtime.libraries import HEADER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

HEAD = '#include "weft_kernel.h"\n'
LIBRARY = HEAD + "WEFT_KERNEL_LIBRARY\n"
F32 = {"float32": "softclip_f32"}


def keep(x: wf.TensorType, **attributes: Any) -> wf.TensorType:
    return x


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with clean_names():
        yield


@pytest.fixture
def library() -> Any:
    return wf.custom.load_library(example_library())


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE / "softclip.py"))


@pytest.fixture
def softclip(library: Any, example: dict[str, Any]) -> Any:
    return example["define_softclip"](library)


@pytest.fixture
def nearest(library: Any, example: dict[str, Any]) -> Any:
    return example["define_nearest"](library)


def reference(x: Any, limit: float = 1.0) -> Any:
    return limit * np.tanh(x / limit)


# --- the example ---------------------------------------------------------------------------------


def test_the_operations_of_the_example_pass_the_derived_tests(softclip: Any, nearest: Any) -> None:
    for operation in (softclip, wf.ir.PRIMITIVES["softclip_slope"], nearest):
        wf.testing.check_primitive(operation)


@pytest.mark.slow
def test_the_example_runs() -> None:
    command = [sys.executable, str(EXAMPLE / "softclip.py")]
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    start, end = map(float, found.stdout.rsplit("loss", 1)[1].split(" -> "))
    assert end < start / 10


def test_eager_and_compiled_calls_give_the_same(softclip: Any, rng: np.random.Generator) -> None:
    for shape in ((), (5,), (3, 0), (40, 1000)):
        for dtype in ("float32", "float64"):
            x = rng.normal(size=shape).astype(dtype) * 3
            eager = softclip(wf.tensor(x), limit=2.0)
            np.testing.assert_allclose(eager.numpy(), reference(x, 2.0), rtol=1e-5)
            compiled = wf.jit(lambda x: softclip(x, limit=2.0))(wf.tensor(x))
            np.testing.assert_array_equal(compiled.numpy(), eager.numpy())


def test_operands_that_are_not_dense_are_made_so(softclip: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=(6, 8)).astype(np.float32)
    for view in (x.T, x[::2, ::-1], np.broadcast_to(x[0], (3, 8))):
        np.testing.assert_allclose(softclip(view).numpy(), reference(view), rtol=1e-5)
        np.testing.assert_allclose(wf.jit(softclip)(wf.tensor(view)).numpy(), reference(view), 1e-5)


def test_compiled_programs_call_the_library_and_not_python(softclip: Any) -> None:
    step = wf.jit(lambda x: softclip(wf.exp(x) + 1) * 2)
    report = step.explain(wf.tensor([1.0]))
    assert report.references == []
    assert [each.name for each in report.kernels] == ["k0", "softclip", "k1"]


def test_gradients_of_both_orders_are_compiled(softclip: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=7)
    f = wf.jit(wf.vmap(wf.grad(lambda x: softclip(x, limit=2.0))))
    t = np.tanh(x / 2.0)
    np.testing.assert_allclose(f(wf.tensor(x)).numpy(), 1 - t**2, rtol=1e-12)
    second = wf.jit(wf.vmap(wf.grad(wf.grad(lambda x: softclip(x, limit=2.0)))))
    np.testing.assert_allclose(second(wf.tensor(x)).numpy(), -t * (1 - t**2), rtol=1e-9)


def test_sizes_may_be_symbols(softclip: Any, rng: np.random.Generator) -> None:
    f = wf.jit(lambda x: softclip(x * 2))
    for count in (3, 5, 9, 4):
        x = rng.normal(size=(count, 2)).astype(np.float32)
        np.testing.assert_allclose(f(wf.tensor(x)).numpy(), reference(x * 2), rtol=1e-5)
    assert len(f.compilations) == 2


def test_a_kernel_inside_a_loop_of_the_program(softclip: Any) -> None:
    def f(x: Any) -> Any:
        return wf.scan(lambda c, _: (softclip(c + 1.0, limit=3.0), c), x, wf.zeros(6))[0]

    expected = np.array([0.5, -1.0], np.float32)
    for _ in range(6):
        expected = reference(expected + 1, 3.0)
    np.testing.assert_allclose(wf.jit(f)(wf.tensor([0.5, -1.0])).numpy(), expected, rtol=1e-5)


def test_operands_of_different_shapes_and_dtypes_meet(library: Any, softclip: Any) -> None:
    slope = wf.ir.PRIMITIVES["softclip_slope"]
    assert softclip(3).dtype is wf.float32
    with pytest.raises(wf.ShapeError, match="different shapes"):
        slope.type_rule(wf.spec("float32", (2,)), wf.spec("float32", (1,)), limit=1.0)


def test_a_shape_function_of_the_library_rules_the_types(
    nearest: Any, rng: np.random.Generator
) -> None:
    x, codes = (rng.normal(size=(n, 5)).astype(np.float32) for n in (300, 17))
    expected = ((x[:, None] - codes) ** 2).sum(-1).argmin(-1)
    for call in (nearest, wf.jit(nearest)):
        np.testing.assert_array_equal(call(wf.tensor(x), wf.tensor(codes)).numpy(), expected)
    batched = wf.vmap(nearest, in_axes=(0, None))(wf.tensor(x[None]), wf.tensor(codes))
    np.testing.assert_array_equal(batched.numpy(), expected[None])
    with pytest.raises(wf.ArgumentError, match="rows of x and of codes must have the same length"):
        nearest(wf.zeros((2, 3)), wf.zeros((2, 4)))
    with pytest.raises(wf.ShapeError, match="needs to know all sizes"):
        wf.ir.infer(nearest, wf.spec("float32", ("n", 3)), wf.spec("float32", (4, 3)))
    again = wf.jit(nearest)  # other sizes are compiled for themselves
    for n in (2, 3, 4):
        assert again(wf.tensor(x[:n]), wf.tensor(codes)).tolist() == expected[:n].tolist()


def test_several_threads_may_call_one_kernel(softclip: Any, rng: np.random.Generator) -> None:
    arrays = [rng.normal(size=100_000).astype(np.float32) for _ in range(8)]
    f = wf.jit(softclip)
    with ThreadPoolExecutor(4) as pool:
        for call in (softclip, f):
            found = list(pool.map(lambda x, call=call: call(wf.tensor(x)).numpy(), arrays))
            for one, x in zip(found, arrays, strict=True):
                np.testing.assert_allclose(one, reference(x), rtol=1e-5, atol=1e-7)


# --- errors of kernels ---------------------------------------------------------------------------


def test_what_a_kernel_reports_is_the_error_of_the_call(softclip: Any) -> None:
    x = wf.tensor([1.0])
    for call in (softclip, wf.jit(lambda x, limit: wf.exp(softclip(x * 2, limit=limit)))):
        with pytest.raises(wf.ArgumentError) as caught:
            call(x, limit=-1.0)
        assert caught.value.op == "softclip"
        assert caught.value.problem == "limit must be positive"
        assert "x1: f32[1]" in caught.value.got
        assert caught.value.at is not None
        assert caught.value.at.file == __file__
        assert np.isfinite(call(x, limit=1.0).item())


def test_a_thread_of_the_pool_may_report_an_error(nearest: Any) -> None:
    x = np.zeros((1000, 2), np.float32)
    x[777] = np.nan
    f = wf.jit(nearest)
    for call in (nearest, f):
        with pytest.raises(wf.ArgumentError, match="infinitely far from all codes, or NaN"):
            call(wf.tensor(x), wf.eye(2))
    x[777] = 0
    assert f(wf.tensor(x), wf.eye(2)).sum().item() == 0


def test_an_error_inside_a_loop_of_the_program_is_told(softclip: Any, tmp_path: Path) -> None:
    text = """
    WEFT_EXPORT int root_f32(weft_context *context, const weft_buffer *x, const weft_buffer *y) {
      float value = *(const float *)x[0].data;
      if (value < 0) return weft_fail(context, "negative");
      *(float *)y[0].data = value - 1;
      return 0;
    }
    """
    root = native(
        "root", wf.custom.load_library(built(LIBRARY + text, tmp_path, "root")),
        dtypes=["float32"], type_rule=lambda x: x,
    )  # fmt: skip
    f = wf.jit(lambda x: wf.fori_loop(0, 5, lambda i, c: root(c), x))
    assert f(wf.tensor(7.0)).item() == 2.0
    with pytest.raises(wf.ArgumentError, match="root: negative"):
        f(wf.tensor(3.0))


def test_state_is_kept_where_a_kernel_fails(softclip: Any) -> None:
    w = wf.tensor([1.0, 2.0])

    @wf.jit
    def step(w: wf.Tensor, limit: float) -> wf.Tensor:
        loss = softclip(w, limit=limit)
        w += 1.0
        return loss

    step(w, 1.0)
    with pytest.raises(wf.ArgumentError, match="limit must be positive"):
        step(w, 0.0)
    assert w.tolist() == [2.0, 3.0]


def test_a_code_without_a_message_and_a_long_message(tmp_path: Path) -> None:
    text = """
    WEFT_EXPORT int coded(weft_context *c, const weft_buffer *x, const weft_buffer *y) {
      (void)c, (void)x, (void)y; return -7;
    }
    WEFT_EXPORT int wordy(weft_context *c, const weft_buffer *x, const weft_buffer *y) {
      (void)x, (void)y;
      char text[2000];
      memset(text, 'a', sizeof text);
      text[1999] = 0;
      weft_fail(c, text);
      return weft_fail(c, "a second message");
    }
    """
    library = wf.custom.load_library(built(LIBRARY + text, tmp_path, "failing"))
    for name, problem in (("coded", "the kernel returned -7"), ("wordy", "a" * 495)):
        made = native(name, library, dtypes={"float32": name}, type_rule=lambda x: x)
        for call in (made, wf.jit(made)):
            with pytest.raises(wf.ArgumentError) as caught:
                call(wf.tensor([1.0]))
            assert caught.value.problem == problem


# --- what a kernel is given ----------------------------------------------------------------------

ATTRIBUTES = """
WEFT_EXPORT int show_f64(weft_context *c, const weft_buffer *x, const weft_buffer *y) {
  double *out = y[0].data;
  const weft_attribute *axes = weft_find(c, "axes"), *reals = weft_find(c, "reals");
  int64_t n = 0;
  out[n++] = c->abi;
  out[n++] = c->attribute_count;
  out[n++] = (double)weft_integer(c, "count", -1);
  out[n++] = weft_real(c, "real", -1);
  out[n++] = (double)weft_integer(c, "flag", -1);
  out[n++] = strcmp(weft_text(c, "mode", ""), "mirrör");
  out[n++] = (double)axes->count;
  out[n++] = (double)((const int64_t *)axes->data)[1];
  out[n++] = ((const double *)reals->data)[2];
  out[n++] = weft_integer(c, "nothing", 5) + weft_real(c, "count", 0.25);
  out[n++] = x[0].dtype == WEFT_FLOAT64 && y[0].dtype == WEFT_FLOAT64;
  out[n++] = x[0].rank;
  for (int axis = 0; axis < x[0].rank; ++axis) out[n++] = (double)x[0].shape[axis];
  for (int axis = 0; axis < x[0].rank; ++axis) out[n++] = (double)x[0].strides[axis];
  for (; n < 20; ++n) out[n] = -1;
  return WEFT_OK;
}
"""


def test_a_kernel_sees_buffers_and_attributes(tmp_path: Path) -> None:
    library = wf.custom.load_library(built(LIBRARY + ATTRIBUTES, tmp_path, "show"))
    show = native(
        "show", library, dtypes=["float64"],
        attributes={"count": 1, "real": float, "flag": False, "mode": "zero", "axes": (0,),
                    "reals": (0.5,)},
        type_rule=lambda x, **attributes: wf.TensorType(x.dtype, (20,)), operands=1,
    )  # fmt: skip
    given = {
        "count": -(1 << 40), "real": 2, "flag": True, "mode": "mirrör", "axes": [7, 8, 9],
        "reals": (1, 2, 3.25),
    }  # fmt: skip
    expected = [1, 6, -(1 << 40), 2, 1, 0, 3, 8, 3.25, 5.25, 1, 3, 2, 3, 4, 12, 4, 1, -1, -1]
    x = wf.zeros((2, 3, 4), dtype="float64")
    for call in (show, wf.jit(lambda x: show(x, **given)).__call__):
        found = call(x, **given) if call is show else call(x)
        assert found.tolist() == expected
    for name, value in {"count": 1.5, "mode": 3, "axes": 1, "reals": ("a",), "real": "x"}.items():
        with pytest.raises(wf.ArgumentTypeError, match=f"attribute {name} is of another kind"):
            show(x, **{**given, name: value})
    with pytest.raises(wf.ArgumentError, match="attribute real is missing"):
        show(x)


def test_every_dtype_has_the_number_that_the_header_gives_it(tmp_path: Path) -> None:
    body = """
    WEFT_EXPORT int number(weft_context *c, const weft_buffer *x, const weft_buffer *y) {
      (void)c; *(int64_t *)y[0].data = x[0].dtype; return 0;
    }
    """
    names = [d.name for d in wf.core.dtypes.DTYPES]
    library = wf.custom.load_library(built(LIBRARY + body, tmp_path, "number"))
    number = native(
        "number", library, dtypes=dict.fromkeys(names, "number"),
        type_rule=lambda x: wf.spec("int64"),
    )  # fmt: skip
    header = HEADER.read_text(encoding="utf-8")
    for name in names:
        value = number(wf.zeros((1,), dtype=name)).item()
        assert f"WEFT_{name.upper()} = {value}" in header


def test_operands_may_have_different_dtypes(tmp_path: Path) -> None:
    body = """
    WEFT_EXPORT int pick(weft_context *c, const weft_buffer *x, const weft_buffer *y) {
      const float *from = x[0].data;
      const int64_t *places = x[1].data;
      float *to = y[0].data;
      for (int64_t i = 0; i < x[1].shape[0]; ++i) {
        if (places[i] < 0 || places[i] >= x[0].shape[0]) return weft_fail(c, "out of bounds");
        to[i] = from[places[i]];
      }
      return 0;
    }
    """
    library = wf.custom.load_library(built(LIBRARY + body, tmp_path, "pick"))
    pick = native(
        "pick", library, dtypes={("float32", "int64"): "pick"},
        type_rule=lambda x, i: wf.TensorType(x.dtype, i.shape),
        derivatives=[
            wf.custom.linear(lambda ct, x, i: wf.scatter_add(wf.zeros_like(x), i, ct)),
            wf.custom.constant("places have no derivative"),
        ],
        samples=[(np.float32([1, 2, 4]), np.array([2, 0]))],
    )  # fmt: skip
    found = wf.jit(pick)(wf.tensor([1.0, 2.0, 4.0]), wf.tensor([2, 2, 0]))
    assert found.tolist() == [4.0, 4.0, 1.0]
    with pytest.raises(wf.DTypeError, match="no kernel for these dtypes") as caught:
        pick(wf.tensor([1.0]), wf.tensor([1.0]))
    assert caught.value.expected == "float32, int64"
    with pytest.raises(wf.ArgumentError, match="out of bounds"):
        wf.jit(pick)(wf.tensor([1.0]), wf.tensor([1]))


def test_the_header_is_plain_c_and_plain_cpp(tmp_path: Path) -> None:
    body = """
    WEFT_EXPORT int twice_f32(weft_context *c, const weft_buffer *x, const weft_buffer *y) {
      const float *from = (const float *)x[0].data;
      float *to = (float *)y[0].data;
      (void)c;
      for (int64_t i = 0; i < weft_elements(&x[0]); ++i) to[i] = 2 * from[i];
      return WEFT_OK;
    }
    """
    for standard, compiler in (("c99", "cc"), ("c++11", "c++")):
        if shutil.which(compiler) is None:
            continue
        source, library = tmp_path / f"twice.{standard}", tmp_path / f"libtwice_{compiler}.so"
        source.write_text(LIBRARY + body, encoding="utf-8")
        command = [
            compiler, "-x", standard.rstrip("0123456789"), f"-std={standard}", "-pedantic",
            "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden",
            "-I", wf.custom.include_folder(), str(source), "-o", str(library),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, text=True)
        twice = native(
            "twice", wf.custom.load_library(library), dtypes=["float32"],
            type_rule=elementwise("float"), reference=lambda x: 2 * x,
        )  # fmt: skip
        wf.testing.check_primitive(twice)
        twice.remove()


# --- programs on disk ----------------------------------------------------------------------------

SCRIPT = """
import runpy, sys, weft as wf
from weft.compiler.function.program_cache import executable
example = runpy.run_path(sys.argv[1])
softclip = example["define_softclip"](wf.custom.load_library(sys.argv[2]))
f = wf.jit(lambda x: softclip(x * 2, limit=3.0) + 1)
x = wf.tensor([0.5, 1.0])
print(type(executable(f.graph(x))).__name__, [v.hex() for v in f(x).tolist()])
"""


@pytest.mark.slow
def test_a_stored_program_finds_the_library_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(EXAMPLE / "softclip.py"), str(example_library())]
    environment = {**os.environ, "WEFT_CACHE": str(tmp_path)}
    found = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (each.stdout.split(" ", 1) for each in found)
    assert [first[0], second[0]] == ["Program", "StoredProgram"]
    assert first[1] == second[1]


def test_a_library_of_other_content_makes_another_program(library: Any, tmp_path: Path) -> None:
    text = (EXAMPLE / "kernels.c").read_text(encoding="utf-8") + "\nint more;\n"
    other = wf.custom.load_library(built(text, tmp_path, "other"))
    digests = []
    for each in (library, other, library):
        made = native("clipped", each, dtypes=F32, attributes={"limit": 1.0}, type_rule=keep)
        digests.append(wf.ir.trace(made, wf.spec("float32", (3,))).digest())
        made.remove()
    assert digests[0] == digests[2] != digests[1]


def test_a_stored_program_says_what_its_kernel_reports(softclip: Any) -> None:
    graph = wf.ir.trace(lambda x: softclip(x, limit=-1.0) * 2, wf.spec("float32", (3,)))
    program = compile_program(graph)
    data = freeze_program(program)
    assert data is not None
    stored = thaw_program(data, lambda: program)
    assert stored is not None
    with pytest.raises(wf.ArgumentError, match="limit must be positive"):
        stored.run([np.ones(3, np.float32)])


# --- capsules ------------------------------------------------------------------------------------


def test_a_module_made_with_pybind11_gives_its_kernels_as_capsules(tmp_path: Path) -> None:
    pybind11 = pytest.importorskip("pybind11")
    library = tmp_path / f"softclip_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = [pybind11.get_include(), sysconfig.get_paths()["include"], wf.custom.include_folder()]
    command = [
        "c++", "-O0", "-Wall", "-Werror", "-shared", "-fPIC", "-std=c++17",
        *[part for folder in folders for part in ("-I", folder)],
        "-o", str(library), str(EXAMPLE / "kernels_pybind.cpp"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    spec = spec_from_file_location("softclip_kernels", library)
    assert spec is not None
    assert spec.loader is not None
    kernels = module_from_spec(spec)
    spec.loader.exec_module(kernels)
    softclip = native(
        "softclip", None, dtypes={"float32": kernels.f32, "float64": kernels.f64},
        attributes={"limit": 1.0}, type_rule=elementwise("float"),
        reference=lambda x, limit: reference(x, limit).astype(x.dtype),
    )  # fmt: skip
    wf.testing.check_primitive(softclip)
    f = wf.jit(lambda x: softclip(x, limit=-1.0))
    with pytest.raises(wf.ArgumentError, match="limit must be positive"):
        f(wf.tensor([1.0]))
    graph = wf.ir.trace(softclip, wf.spec("float32", (3,)))
    assert type(executable(graph)).__name__ == "Program"  # never stored


def test_a_capsule_of_another_kind_is_no_kernel() -> None:
    datetime_capsule = __import__("datetime").datetime_CAPI
    with pytest.raises(wf.ArgumentTypeError, match="this is not a kernel"):
        native("clock", None, dtypes={"float32": datetime_capsule}, type_rule=lambda x: x)


# --- bad registrations ---------------------------------------------------------------------------


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("not a library")
    for path, problem in (
        (text, "no library that can be loaded"),
        (tmp_path / "x", "no such file"),
    ):
        with pytest.raises(wf.ArgumentError, match=problem):
            wf.custom.load_library(path)


def test_a_library_of_no_or_another_version_is_refused(tmp_path: Path) -> None:
    silent = built(HEAD, tmp_path, "silent")
    with pytest.raises(wf.ArgumentError, match="does not say which interface"):
        wf.custom.load_library(silent)
    newer = built(
        HEAD + "WEFT_EXPORT int32_t weft_kernel_abi(void) { return 99; }", tmp_path, "newer"
    )
    with pytest.raises(wf.ArgumentError, match="another version") as caught:
        wf.custom.load_library(newer)
    assert caught.value.note == "version 99"


def test_a_library_that_was_built_anew_is_refused_in_the_same_process(tmp_path: Path) -> None:
    path = built(LIBRARY, tmp_path, "twice")
    assert wf.custom.load_library(path) is wf.custom.load_library(str(path))
    other = tmp_path / "other.so"
    other.write_bytes(path.read_bytes() + b"more")
    other.replace(path)  # as a linker does; to write over code that is mapped ends the process
    with pytest.raises(wf.ArgumentError, match="has changed since it was loaded"):
        wf.custom.load_library(path)


RULE = {"type_rule": lambda x: x}
BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("no function 'softclip_f16'", "f", {"dtypes": ["float16"], **RULE, "name": "softclip"}),
    ("no type rule", "f", {"dtypes": F32}),
    ("no kernel", "f", {"dtypes": {}, **RULE}),
    ("unknown element type", "f", {"dtypes": {"float33": "softclip_f32"}, **RULE}),
    ("are not those of the operands", "f", {"dtypes": {("float32",) * 3: "softclip_f32"}, **RULE}),
    ("no function 'nowhere'", "f", {"dtypes": F32, "shape": "nowhere"}),
    ("exists", "f", {"dtypes": F32, **RULE, "name": "sin"}),
    ("cannot be the name", "f", {"dtypes": F32, **RULE, "name": "2d"}),
    ("of no kind that a kernel", "f", {"dtypes": F32, **RULE, "attributes": {"limit": None}}),
    ("of no kind that a kernel", "f", {"dtypes": F32, **RULE, "attributes": {"limit": ("a", 1)}}),
    ("one derivative for each", "f", {"dtypes": F32, **RULE, "derivatives": []}),
    ("this is not a kernel", "f", {"dtypes": {"float32": 7}, **RULE}),
    ("this is not a library", "f", {"dtypes": F32, **RULE, "library": "libkernels.so"}),
]


@pytest.mark.parametrize(
    ("problem", "name", "slots"), BAD, ids=[f"{i} {each[0]}" for i, each in enumerate(BAD)]
)
def test_a_bad_registration_is_refused(
    library: Any, problem: str, name: str, slots: dict[str, Any]
) -> None:
    before = set(wf.ir.PRIMITIVES)
    with pytest.raises(wf.WeftError) as caught:
        native(**{"name": name, "library": library, **slots})
    assert problem in caught.value.problem
    assert caught.value.fix
    assert before == set(wf.ir.PRIMITIVES)


def test_a_dtype_without_a_kernel_is_refused(softclip: Any) -> None:
    with pytest.raises(wf.DTypeError, match="no kernel for these dtypes"):
        softclip(wf.tensor([1.0], dtype="float16"))


def test_a_kernel_that_contradicts_its_reference_is_seen(library: Any) -> None:
    made = native(
        "softclip", library, dtypes=F32, attributes={"limit": 1.0},
        type_rule=elementwise("float"), reference=lambda x, limit: np.sin(x),
    )  # fmt: skip
    with pytest.raises(AssertionError, match="kernel and reference"):
        wf.testing.check_primitive(made)
