"""Every mistake of the catalogue gets an error with all its fields, and does no harm."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from docs.generate_errors import PAGE, render
from tests.mistakes.catalogue import MISTAKES
from tests.mistakes.entry import Mistake

import weft as wf
from weft.core import errors
from weft.core.errors import WeftError
from weft.core.tracebacks import _install_in_notebook
from weft.ir.tensor import traces

ROOT = Path(__file__).parents[2]
STANDARD = (
    ValueError, TypeError, IndexError, AttributeError, KeyError, RuntimeError, BufferError,
    NotImplementedError, ImportError,
)  # fmt: skip
FORM = re.compile(
    r"(?P<op>[^\n]+?): (?P<problem>[^\n]+)\n"
    r"  expected  (?P<expected>[^\n]+)\n"
    r"  got       (?P<got>[^\n]+)\n"
    r"  fix       (?P<fix>[^\n]+)\n"
    r"  at        (?P<at>[^\n]+:\d+, in [^\n]+)\n"
    r"              (?P<line>[^\n]+)"
    r"(\n              (?P<mark> *\^+))?"
)

each_mistake = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)


def made(mistake: Mistake) -> WeftError:
    """The error of a mistake; warnings on the way would be errors of another kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(WeftError) as caught:
            mistake.run()
    return caught.value


# --- the fields --------------------------------------------------------------------------------


def test_the_catalogue_is_large_and_its_names_and_titles_are_unique() -> None:
    assert len(MISTAKES) >= 90
    for field in ("name", "title"):
        values = [getattr(mistake, field) for mistake in MISTAKES]
        assert sorted(values) == sorted(set(values))


@each_mistake
def test_a_mistake_gets_an_error_with_all_fields(mistake: Mistake) -> None:
    error = made(mistake)
    assert isinstance(error, mistake.error)
    assert isinstance(error, STANDARD)
    assert error.op == mistake.op
    for field in ("problem", "expected", "got", "fix"):
        assert getattr(mistake, field) in getattr(error, field)
        assert getattr(mistake, field)


@each_mistake
def test_a_mistake_is_shown_on_the_users_line(mistake: Mistake) -> None:
    at = made(mistake).at
    assert at is not None
    assert at.file == mistake.file
    assert at.line == mistake.line


@each_mistake
def test_the_text_of_an_error_has_the_one_form(mistake: Mistake) -> None:
    error = made(mistake)
    found = FORM.fullmatch(str(error))
    assert found is not None
    for field in ("op", "problem", "expected", "fix"):
        assert found[field] == getattr(error, field)
    assert found["got"].startswith(error.got)
    assert found["line"] in Path(mistake.file).read_text(encoding="utf-8")


@each_mistake
def test_an_error_survives_a_pickle(mistake: Mistake) -> None:
    error = made(mistake)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_an_error_of_every_class_is_copied_and_survives_a_pickle() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    found = [each for each in classes if issubclass(each, WeftError)]
    assert len(found) > 10
    for kind in found:
        error = kind("op", "problem", expected="one", got={"x": 2}, fix="x = 1")
        for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (type(again), str(again)) == (kind, str(error))


@each_mistake
def test_a_mistake_leaves_the_state_as_it_was(mistake: Mistake) -> None:
    state = wf.random.get_state()
    made(mistake)
    assert traces.stack == []
    assert wf.is_grad_enabled()
    assert wf.settings.full_tracebacks is False
    wf.random.set_state(state)
    assert wf.grad(lambda x: (x * x).sum())(wf.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


# --- what a refused write leaves behind --------------------------------------------------------


def add_in_place(x: wf.Tensor, value: object) -> None:
    x += value


def write_first(x: wf.Tensor, value: object) -> None:
    x[0] = value


@pytest.mark.parametrize("write", [add_in_place, write_first])
@pytest.mark.parametrize("value", [0.5, wf.ones(4), None, "text", wf.ones((2, 3))])
def test_a_refused_write_changes_nothing(
    write: Callable[[wf.Tensor, object], None], value: object
) -> None:
    x = wf.tensor([1, 2, 3])
    with pytest.raises(WeftError):
        write(x, value)
    assert x.tolist() == [1, 2, 3]
    assert x.dtype is wf.int64


def test_a_refused_backward_leaves_the_gradients() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    y = w * w
    with pytest.raises(wf.GradientError):
        y.backward()
    assert w.grad is None
    y.sum().backward()
    assert w.grad.tolist() == [2.0, 4.0]


def test_division_of_integers_by_zero_is_no_crash() -> None:
    x, zero = wf.tensor([1, -1, 0]), wf.tensor([0, 0, 0])
    assert (x / zero).tolist()[:2] == [float("inf"), float("-inf")]
    assert (x // zero).tolist() == [0, 0, 0]
    assert (x % zero).tolist() == [0, 0, 0]


# --- tracebacks of uncaught errors -------------------------------------------------------------

SCRIPT = """
    import weft as wf
    {setting}

    def loss(w):
        return (w @ wf.ones((4, 2))).sum()

    wf.grad(loss)(wf.ones(3))
"""


def uncaught(tmp_path: Path, setting: str) -> str:
    """What Python prints for a script that makes a mistake; warnings are errors."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(setting=setting)), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(wf.__file__).parents[1])},
        check=False,
    )
    assert result.returncode == 1
    return result.stderr


def test_an_uncaught_error_shows_only_the_users_frames(tmp_path: Path) -> None:
    text = uncaught(tmp_path, "")
    frames = re.findall(r'File "([^"]+)", line \d+, in (\S+)', text)
    assert [Path(file).name for file, _ in frames] == ["script.py", "script.py"]
    assert [name for _, name in frames] == ["<module>", "loss"]
    assert "ShapeError: matmul: inner dimensions differ" in text
    assert "  at        script.py:6, in loss" in text


class Shell:
    """What is asked of IPython's shell."""

    custom_exceptions: tuple[type, ...] = ()

    def set_custom_exc(self, kinds: tuple[type, ...], handler: Callable[..., None]) -> None:
        self.custom_exceptions, self.handler = kinds, handler

    def showtraceback(self, shown: tuple[object, ...], tb_offset: int | None) -> None:
        self.shown, self.tb_offset = shown, tb_offset

    def run_cell(self, code: str) -> list[str]:
        """The functions in the traceback that is shown for the error of a cell."""
        try:
            exec(compile(code, "cell", "exec"), {"wf": wf})
        except (TypeError, WeftError) as error:
            self.handler(self, type(error), error, error.__traceback__, tb_offset=1)
        frames = []
        traceback = self.shown[2]
        while traceback is not None:
            frames.append(traceback.tb_frame.f_code.co_name)
            traceback = traceback.tb_next
        return frames


def test_a_notebook_shows_only_the_users_frames() -> None:
    shell = Shell()
    _install_in_notebook(shell)
    code = "def loss(w):\n    return (w @ wf.ones((4, 2))).sum()\nwf.grad(loss)(wf.ones(3))"
    assert shell.run_cell(code)[-2:] == ["<module>", "loss"]
    assert shell.tb_offset == 0
    assert shell.run_cell("len(5)")[-1] == "<module>"
    assert shell.tb_offset == 1
    with wf.settings.changed(full_tracebacks=True):
        assert len(shell.run_cell(code)) > 4


def test_a_handler_of_the_users_own_stays_in_a_notebook() -> None:
    shell = Shell()
    shell.custom_exceptions = (ValueError,)
    _install_in_notebook(shell)
    assert shell.custom_exceptions == (ValueError,)


def test_full_tracebacks_show_all_frames(tmp_path: Path) -> None:
    text = uncaught(tmp_path, "wf.settings.full_tracebacks = True")
    files = re.findall(r'File "([^"]+)"', text)
    assert any(os.path.join("weft", "transforms") in file for file in files)
    assert Path(files[0]).name == "script.py"


# --- the page ----------------------------------------------------------------------------------


def without_marks(page: str) -> list[str]:
    """The lines of a page but those that underline: Python knows more columns in newer versions."""
    return [line for line in page.splitlines() if not re.fullmatch(r" +\^+", line)]


def test_the_page_of_errors_is_up_to_date() -> None:
    """`make docs` writes it."""
    assert without_marks(PAGE.read_text(encoding="utf-8")) == without_marks(render())
