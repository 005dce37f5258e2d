"""Exported programs: run from C here, in emulators and on the web, against the reference."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nightly import NIGHTLY

import weft as wf
from weft.cli import main
from weft.compiler.export import checking, linking
from weft.compiler.export.linking import c_compiler, web_linker
from weft.compiler.export.machines import PLATFORMS, platform_named

from .programs import PROGRAMS, numbers

needs_compiler = pytest.mark.skipif(
    c_compiler(platform_named("host")) is None, reason="no C compiler is found"
)
EMULATED = ["x86-64-linux", "aarch64-linux", "riscv64-linux"]


def skip_without_tools(target: str) -> None:
    platform = PLATFORMS[target]
    if target == "wasm32":
        if web_linker() is None or (find_spec("wasmtime") is None and not shutil.which("node")):
            pytest.skip("no linker for the web, or nothing that runs its programs")
    elif c_compiler(platform) is None:
        pytest.skip(f"no C compiler for {target} is found")
    elif target != "x86-64-linux" and not any(map(shutil.which, platform.emulators)):
        pytest.skip(f"no emulator of {target} is found")


def library(shipped: Any) -> Any:
    """The shared library in this process, with the types of its functions."""
    code = ctypes.CDLL(str(shipped.folder / "libmodel.so"))
    code.model_state.restype = code.model_init.restype = ctypes.c_void_p
    if shipped.interface.heap:
        code.model_create.restype = ctypes.c_void_p
    code.model_message.restype = ctypes.c_char_p
    return code


def run(code: Any, model: int, *arrays: np.ndarray[Any, Any]) -> int:
    return int(
        code.model_run(ctypes.c_void_p(model), *[ctypes.c_void_p(a.ctypes.data) for a in arrays])
    )


@needs_compiler
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_agrees_with_the_reference(name: str, tmp_path: Path) -> None:
    f, arguments = PROGRAMS[name]()
    found = wf.export(f, arguments, tmp_path / "model").check()
    assert found.differences
    assert found.largest_difference < 1e-5


@pytest.mark.slow
def test_a_program_for_windows_agrees_where_wine_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_tools("x86-64-windows")
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    monkeypatch.setenv("WINEDEBUG", "-all")
    f, arguments = PROGRAMS["convolutions"]()
    shipped = wf.export(f, arguments, tmp_path / "model", target="x86-64-windows")
    assert shipped.check().largest_difference < 1e-5
    # a program that finds its functions in the .dll alone
    platform, program = platform_named("x86-64-windows"), tmp_path / "model" / "main.exe"
    sources = [tmp_path / "model" / name for name in ("main.c", "libmodel.dll")]
    linking.build_program(platform, "x86-64-windows", sources, program)
    inputs = b"".join(x.tobytes() for x in shipped.interface.program.examples_at({}))
    (tmp_path / "inputs.bin").write_bytes(inputs)
    files = [str(tmp_path / name) for name in ("inputs.bin", "outputs.bin")]
    command = [*linking.runner(platform, "x86-64-windows"), str(program), *files, "1"]
    linking.run_program(command, tmp_path)
    runs = checking.reference_runs(shipped.interface.program, 1)
    wanted = np.concatenate([x.ravel() for x in runs])
    found = np.frombuffer((tmp_path / "outputs.bin").read_bytes(), np.float32)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("target", [*EMULATED, "wasm32"])
@pytest.mark.parametrize("name", PROGRAMS if NIGHTLY else ["convolutions", "loops"])
def test_a_program_for_another_machine_agrees(name: str, target: str, tmp_path: Path) -> None:
    skip_without_tools(target)
    f, arguments = PROGRAMS[name]()
    shipped = wf.export(f, arguments, tmp_path / "model", target=target, memory="static")
    assert shipped.check().largest_difference < 1e-5


def test_a_program_on_a_bare_microcontroller_agrees(tmp_path: Path) -> None:
    if c_compiler(PLATFORMS["thumbv7em"]) is None or not shutil.which("qemu-system-arm"):
        pytest.skip("no C compiler for Cortex-M, or no emulator of a board, is found")
    f, arguments = PROGRAMS["a_recurrent_layer"]()
    choices = {"target": "thumbv7em", "memory": "static"}
    shipped = wf.export(f, arguments, tmp_path / "model", **choices)
    assert shipped.check().largest_difference < 1e-5


OBJECTS = {
    "thumbv7em": b"\x7fELF\x01", "x86-64-v4-linux": b"\x7fELF\x02",
    "x86-64-windows": b"\x64\x86", "aarch64-macos": b"\xcf\xfa\xed\xfe",
}  # fmt: skip
"""What object files of a machine begin with."""


@pytest.mark.parametrize("target", OBJECTS)
def test_a_program_is_made_for_machines_that_do_not_run_here(target: str, tmp_path: Path) -> None:
    f, arguments = PROGRAMS["a_perceptron"]()
    shipped = wf.export(f, arguments, tmp_path / "model", target=target, memory="static")
    assert {"model.o", "model.a", "model.h", "main.c"} <= set(shipped.files)
    assert (shipped.folder / "model.o").read_bytes().startswith(OBJECTS[target])


def test_the_script_for_the_web_does_what_its_module_does(tmp_path: Path) -> None:
    skip_without_tools("wasm32")
    node = shutil.which("node")
    if node is None or find_spec("wasmtime") is None:
        pytest.skip("node and wasmtime are compared")
    f, arguments = PROGRAMS["state_that_changes_places"]()
    shipped = wf.export(f, arguments, tmp_path / "model", target="wasm32", weights="beside")
    given = tmp_path / "inputs.bin"
    given.write_bytes(arguments[0].numpy().tobytes())
    files = [str(given), str(tmp_path / "by_node.bin"), "3"]
    subprocess.run([node, str(shipped.folder / "main.mjs"), *files], check=True)
    files[1] = str(tmp_path / "here.bin")
    checking.run_by_wasmtime(shipped.interface, shipped.folder, files, {})
    assert (tmp_path / "by_node.bin").read_bytes() == (tmp_path / "here.bin").read_bytes()


@needs_compiler
def test_weights_beside_the_code_are_mapped(tmp_path: Path) -> None:
    f, arguments = PROGRAMS["a_perceptron"]()
    shipped = wf.export(f, arguments, tmp_path / "model", weights="beside")
    assert shipped.check().largest_difference < 1e-5
    held = wf.load(shipped.folder / "model.safetensors")
    assert sorted(held) == ["0.bias", "0.weight", "2.bias", "2.weight"]


@needs_compiler
def test_a_type_stands_for_an_example(tmp_path: Path) -> None:
    kinds = {"x": wf.spec("float32", (3, 4)), "i": wf.spec("int64", (2,))}
    shipped = wf.export(lambda a: a["x"][a["i"]] * 2, [kinds], tmp_path / "model", check=True)
    assert [port.title for port in shipped.interface.program.inputs] == ["a.i", "a.x"]


@needs_compiler
def test_names_may_hold_anything(tmp_path: Path) -> None:
    kinds = {'a "b" \\ */ c': wf.spec("float32", (2,)), "int": wf.spec("float32", (2,))}
    f = lambda a: {key: x * 2 for key, x in a.items()}  # noqa: E731
    shipped = wf.export(f, [kinds], tmp_path / "model", form="c", check=True)
    assert len({port.name for port in shipped.interface.ports}) == 4


def test_a_symbol_without_its_largest_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="symbol") as caught:
        wf.export(lambda x: x * 2, [wf.spec("float32", ("batch", 4))], tmp_path / "model")
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


@needs_compiler
def test_two_instances_run_in_two_threads(tmp_path: Path) -> None:
    total = wf.zeros(300)

    def add(x: wf.Tensor) -> wf.Tensor:
        total.copy_(total + wf.softmax(x))
        return total * 2

    code = library(wf.export(add, [numbers(300)], tmp_path / "model"))

    def many(seed: int) -> tuple[Any, Any]:
        x, out, model = numbers(300, seed=seed).numpy(), np.zeros(300, "f4"), code.model_create()
        for _ in range(500):
            assert run(code, model, x, out) == 0
        code.model_destroy(ctypes.c_void_p(model))
        return x, out

    with ThreadPoolExecutor(2) as pool:
        for x, out in pool.map(many, (1, 2)):
            np.testing.assert_allclose(out, 1000 * wf.softmax(wf.tensor(x)).numpy(), rtol=1e-3)


@needs_compiler
def test_state_is_read_written_and_reset_through_the_interface(tmp_path: Path) -> None:
    cache, place = wf.zeros((4, 3)), wf.tensor(0)

    def append(x: wf.Tensor) -> wf.Tensor:
        cache.copy_(wf.dynamic_update_slice(cache, x[None], (place, 0)))
        place.copy_(place + 1)
        return cache.sum(0)

    shipped = wf.export(append, [numbers(3)], tmp_path / "model")
    names = [state.port.name for state in shipped.interface.program.states]
    code, out = library(shipped), np.zeros(3, "f4")
    model = code.model_create()
    held = (ctypes.c_float * 12).from_address(
        code.model_state(ctypes.c_void_p(model), names.index("cache"))
    )
    for n in (1, 2):
        assert run(code, model, np.full(3, n, "f4"), out) == 0
    assert list(held) == [1] * 3 + [2] * 3 + [0] * 6
    assert out.tolist() == [3, 3, 3]
    code.model_reset(ctypes.c_void_p(model))
    assert list(held) == [0] * 12
    held[9] = 5
    assert run(code, model, np.ones(3, "f4"), out) == 0
    assert out.tolist() == [6, 1, 1]
    code.model_destroy(ctypes.c_void_p(model))


@needs_compiler
def test_a_large_state_is_changed_in_its_place(tmp_path: Path) -> None:
    cache, place = wf.zeros((64, 1024)), wf.tensor(0)

    def append(x: wf.Tensor) -> wf.Tensor:
        cache.copy_(wf.dynamic_update_slice(cache, x[None], (place, 0)))
        place.copy_(place + 1)
        return x * 2

    shipped = wf.export(append, [numbers(1024)], tmp_path / "model")
    assert shipped.memory < 1.1 * 64 * 1024 * 4, "a second copy of the cache"
    shipped.check()


@needs_compiler
def test_an_index_that_is_out_of_bounds_is_a_status_with_the_users_line(tmp_path: Path) -> None:
    table = numbers(20, 8)
    code = library(wf.export(lambda i: table[i], [wf.tensor([3])], tmp_path / "model"))
    model, out = code.model_create(), np.zeros(8, "f4")
    assert run(code, model, np.array([3]), out) == 0
    np.testing.assert_array_equal(out, table.numpy()[3])
    status = run(code, model, np.array([20]), out)
    assert status > 0
    message = code.model_message(status).decode()
    assert "test_export.py" in message
    assert code.model_message(0) == b"no error"
    assert run(code, model, np.array([19]), out) == 0, "the next run is as any"
    code.model_destroy(ctypes.c_void_p(model))


@needs_compiler
@pytest.mark.parametrize("name", ["a_turned_product", "convolutions", "orders_and_rows"])
def test_a_run_stays_within_the_memory_that_it_asks_for(name: str, tmp_path: Path) -> None:
    f, arguments = PROGRAMS[name]()
    shipped = wf.export(f, arguments, tmp_path / "model", memory="static")
    assert not {"malloc", "free"} & set(shipped.called)
    code, size = library(shipped), shipped.memory
    memory = np.full(size + 256, 0xA5, "u1")
    first = -memory.ctypes.data % 64
    model = code.model_init(ctypes.c_void_p(memory.ctypes.data + first))
    program = shipped.interface.program
    outputs = [np.zeros(port.type.shape, port.type.dtype.numpy) for port in program.outputs]
    assert run(code, model, *program.examples, *outputs) == 0
    assert set(memory[:first]) <= {0xA5}
    assert set(memory[first + size :]) == {0xA5}


@needs_compiler
def test_the_static_library_is_one_that_linkers_take(tmp_path: Path) -> None:
    f, arguments = PROGRAMS["a_perceptron"]()
    folder = wf.export(f, arguments, tmp_path / "model").folder
    compiler = c_compiler(platform_named("host"))
    assert compiler is not None
    strict = ["-Wall", "-Wextra", "-Werror", "-std=c99"]
    files = [str(folder / "main.c"), str(folder / "model.a"), "-o", str(tmp_path / "main")]
    subprocess.run([*compiler, *strict, *files, "-lm"], check=True)
    said = subprocess.run([str(tmp_path / "main")], check=True, capture_output=True, text=True)
    assert said.stdout.startswith("output[0] = ")


# --- mistakes ------------------------------------------------------------------------------------


def test_a_target_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError) as caught:
        wf.export(lambda x: x * 2, [numbers(3)], tmp_path / "model", target="vax")
    assert "aarch64-linux" in caught.value.expected
    assert not (tmp_path / "model").exists()


def test_what_cannot_leave_python_is_named_with_its_line(tmp_path: Path) -> None:
    def f(a: wf.Tensor) -> wf.Tensor:
        return wf.linalg.solve(a, a) * 2

    with pytest.raises(wf.UnsupportedError) as caught:
        wf.export(f, [numbers(3, 3)], tmp_path / "model")
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_complex_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(wf.UnsupportedError, match="complex"):
        wf.export(lambda x: x * 2, [wf.tensor([1 + 2j])], tmp_path / "model")


def test_a_step_that_would_add_to_gradients_is_refused(tmp_path: Path) -> None:
    w = wf.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def step(x: wf.Tensor) -> wf.Tensor:
        loss = (w * x).sum()
        loss.backward()
        return loss

    with pytest.raises(wf.UnsupportedError) as caught:
        wf.export(step, [numbers(3)], tmp_path / "model")
    assert "zero_grad" in caught.value.fix


@pytest.mark.parametrize("wrong", [{"name": "3 d"}, {"memory": "stack"}, {"weights": "elsewhere"}])
def test_a_choice_that_there_is_none_of_is_refused(wrong: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError) as caught:
        wf.export(lambda x: x, [numbers(3)], tmp_path / "model", **wrong)
    assert next(iter(wrong)) in caught.value.problem


@pytest.mark.parametrize("waits", [True, False])
def test_a_linker_that_hangs_or_does_not_start_is_told_and_leaves_no_files(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["sh", "-c", "exec sleep 60"] if waits else [str(tmp_path / "no_linker")]
    monkeypatch.setattr(linking, "LIMIT", 0.2)
    monkeypatch.setattr(linking, "c_compiler", lambda platform: command)
    told = "did not end within 0.2 seconds" if waits else "could not be run"
    with pytest.raises(wf.UnsupportedError, match=told):
        wf.export(lambda x: x * 2, [wf.ones(3)], tmp_path / "model")
    assert [each.name for each in tmp_path.iterdir()] == []


def test_where_no_compiler_is_found_ziglang_links_for_every_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(linking, "find_spec", lambda name: object())

    def triple(target: str, static: bool = False) -> str | None:
        command = c_compiler(platform_named(target), static=static)
        return None if command is None else command[-1]

    assert triple("aarch64-linux") == "aarch64-linux-gnu"
    assert triple("aarch64-linux", static=True) == "aarch64-linux-musl"  # glibc is never static
    assert triple("x86-64-windows", static=True) == "x86_64-windows-gnu"
    assert triple("aarch64-macos") == "aarch64-macos"
    assert triple("host") is not None
    assert triple("thumbv7em") is None  # whose C library comes with its own compiler


def test_a_compiler_without_the_library_of_its_machine_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "ld: cannot find crti.o: No such file or directory"
    command = ["sh", "-c", f"echo '{said}' >&2; exit 1"]
    monkeypatch.setattr(linking, "c_compiler", lambda platform: command)
    with pytest.raises(wf.UnsupportedError, match=r"cannot find crti\.o") as caught:
        wf.export(lambda x: x * 2, [wf.ones(3)], tmp_path / "model", target="aarch64-linux")
    assert "install the C library of aarch64-linux" in caught.value.fix
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(wf.ArgumentError, match="could not be written"):
        wf.export(lambda x: x, [numbers(3)], tmp_path / "file" / "model")


@needs_compiler
@pytest.mark.parametrize("form", ["object", "c"])
def test_stripped_names_are_in_no_file(form: str, tmp_path: Path) -> None:
    secret_table, secret_total = numbers(9, 4), wf.zeros(4)

    def f(row: wf.Tensor) -> wf.Tensor:
        secret_total.copy_(secret_total + secret_table[row])
        return secret_total * 2

    for stripped in (False, True):
        shipped = wf.export(
            f, [wf.tensor(3)], tmp_path / f"model{stripped}", form=form, weights="beside",
            strip_names=stripped,
        )  # fmt: skip
        shipped.check()
        texts = [(shipped.folder / name).read_bytes() for name in shipped.files]
        assert any(b"secret" in text for text in texts) is not stripped
        assert any(Path(__file__).name.encode() in text for text in texts) is not stripped
        assert any(b"row" in text for text in texts)


def test_a_second_export_leaves_no_file_of_the_first_behind(tmp_path: Path) -> None:
    net, x, folder = wf.nn.Linear(4, 3), wf.ones((2, 4)), tmp_path / "model"
    wf.export(net, [x], folder, weights="beside")
    (folder / "notes.txt").write_text("mine")
    wf.export(net, [x], folder, name="other")
    second = wf.export(net, [x], folder, form="c")
    here = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    assert set(second.files) == {"main.c", "model.c", "model.h"}
    assert {name for name in here if "model" in name} == {"model.c", "model.h"}
    assert {"notes.txt", "other.o", "other.h"} <= here


def test_a_file_that_was_changed_since_an_export_is_not_deleted(tmp_path: Path) -> None:
    net, x, folder = wf.nn.Linear(4, 3), wf.ones((2, 4)), tmp_path / "model"
    wf.export(net, [x], folder, weights="beside")
    (folder / "model.safetensors").write_bytes(b"of another training")
    (tmp_path / "outside").write_text("x")
    record = folder / ".model.export"
    record.write_text(record.read_text().replace("model.a", "../outside"))
    wf.export(net, [x], folder)
    assert (folder / "model.safetensors").read_bytes() == b"of another training"
    assert (tmp_path / "outside").exists()


def test_a_check_finds_a_program_that_gives_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checking.reference_runs
    monkeypatch.setattr(
        checking, "reference_runs", lambda *given: [each * 1.01 for each in real(*given)]
    )
    with pytest.raises(wf.MiscompiledError):
        wf.export(lambda x: x * 2, [numbers(3)], tmp_path / "model", check=True)


@needs_compiler
def test_a_check_takes_a_program_that_rounds_as_the_compiled_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checking.reference_runs

    def one_step_off(*given: Any) -> Any:
        off = 0.0 if len(given) > 3 else 1.0  # the compiled program is the fourth
        return [each + off for each in real(*given)]

    monkeypatch.setattr(checking, "reference_runs", one_step_off)
    shipped = wf.export(lambda x: wf.round(x * 3), [numbers(7)], tmp_path / "steps")
    assert "as compiled; by the rules of its operations" in str(shipped.check())
    smooth = wf.export(lambda x: x * 3, [numbers(7)], tmp_path / "smooth")
    with pytest.raises(wf.MiscompiledError):
        smooth.check()


# --- C -------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "orders_and_rows"])
def test_a_program_in_c_agrees_with_the_reference(name: str, tmp_path: Path) -> None:
    f, arguments = PROGRAMS[name]()
    shipped = wf.export(f, arguments, tmp_path / "model", form="c")
    assert set(shipped.files) == {"model.c", "model.h", "main.c"}
    assert shipped.check().largest_difference < 1e-5


@needs_compiler
def test_a_program_in_c_takes_weights_from_a_file_and_memory_from_its_caller(
    tmp_path: Path,
) -> None:
    f, arguments = PROGRAMS["convolutions"]()
    choices = {"weights": "beside", "memory": "static"}
    shipped = wf.export(f, arguments, tmp_path / "model", form="c", **choices)
    assert shipped.check().largest_difference < 1e-5
    assert "malloc(" not in (shipped.folder / "model.c").read_text()


def test_what_has_no_form_in_c_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(wf.UnsupportedError, match="no form in C") as caught:
        wf.export(lambda x: wf.sort(x), [numbers(9)], tmp_path / "model", form="c")
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


# --- other languages -----------------------------------------------------------------------------


def documented(language: str) -> str:
    """The program of a language in the page on export."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    return page.split(f"```{language}\n")[1].split("```")[0]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("language", ["rust", "go"])
def test_the_documented_program_of_another_language_calls_the_library(
    language: str, tmp_path: Path
) -> None:
    tool = shutil.which({"rust": "rustc", "go": "go"}[language])
    if tool is None:
        pytest.skip(f"no compiler of {language} is found")
    weight = numbers(4, 3)
    folder = wf.export(lambda x: x @ weight, [wf.ones((1, 4))], tmp_path / "model").folder
    if language == "rust":
        (folder / "main.rs").write_text(documented("rust"))
        shutil.copy(folder / "model.a", folder / "libmodel.a")
        (folder / "libmodel.so").unlink()
        command = [tool, "main.rs", "-L", ".", "-l", "static=model", "-o", "program"]
    else:
        (folder / "main.c").unlink()  # cgo would compile it, too
        (folder / "main.go").write_text(documented("go"))
        (folder / "go.mod").write_text("module program\n")
        command = [tool, "build", "-o", "program"]
    environment = {**os.environ, "GOCACHE": str(tmp_path / "cache"), "GOFLAGS": "-mod=mod"}
    subprocess.run(command, cwd=folder, check=True, env=environment)
    said = subprocess.run([str(folder / "program")], check=True, capture_output=True, text=True)
    found = [float(word) for word in said.stdout.strip("[]\n").replace(",", " ").split()]
    np.testing.assert_allclose(found, weight.numpy().sum(0), rtol=1e-4)


# --- the command ---------------------------------------------------------------------------------


def test_the_command_writes_and_checks_a_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import weft as wf\n\nnet = wf.models.MLP([4, 8, 3])\n")
    folder = tmp_path / "shipped"
    command = ["export", f"{file}:net", "--input", "1x4", "--form", "c", "-o", str(folder)]
    can_check = c_compiler(platform_named("host")) is not None
    assert main([*command, *(["--check"] if can_check else [])]) == 0
    assert (folder / "model.c").exists()
    assert "model.h" in capsys.readouterr().out
    several = ["export", f"{file}:net", "--input", "batch,4", "-o", str(folder)]
    assert main([*several, "--most", "batch=16", "--threads", "2"]) == 0
    assert "MODEL_MOST_BATCH 16" in (folder / "model.h").read_text()
    assert main([*several, "--most", "batch"]) != 0
    assert "--most batch=64" in capsys.readouterr().err
    assert main(["export", f"{file}:net", "--input", "1x4", "--target", "vax"]) != 0
    assert "aarch64-linux" in capsys.readouterr().err
