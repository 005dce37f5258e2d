"""Arrays that begin on a cache line: they own their memory, and parameters are such arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core import cache_lines
from weft.core.cache_lines import LINE, begins_within_line, copy_on_line, empty_on_line

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="arrays begin anywhere here")


def at(array: Array) -> int:
    return int(array.ctypes.data)


def array_within_line(shape: tuple[int, ...]) -> Array:
    """Numbers that a new array holds which begins inside of a line, as most do."""
    tried = [np.empty(shape, np.float32) for _ in range(64)]
    found = next((each for each in tried if at(each) % LINE), None)
    if found is None:
        pytest.skip("this system begins all arrays on a line")
    found[...] = np.arange(found.size).reshape(shape)
    return found


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 5), (512, 512), (3, 1 << 20)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex128"])
def test_a_new_array_begins_on_a_line_and_owns_its_memory(
    shape: tuple[int, ...], dtype: str
) -> None:
    for array in [empty_on_line(shape, dtype) for _ in range(8)]:
        assert at(array) % LINE == 0
        assert array.flags.owndata
        assert array.flags.carray
        assert (array.shape, array.dtype, array.base) == (shape, np.dtype(dtype), None)
        array[...] = 1
        assert (array == 1).all()


def test_others_are_allocated_as_before() -> None:
    name = np._core.multiarray.get_handler_name  # type: ignore[attr-defined]
    usual = name(np.empty(9))
    array = empty_on_line(1000, "float32")
    assert name(np.empty(9)) == usual != name(array)
    found: list[str] = []
    thread = Thread(target=lambda: found.extend(map(name, (empty_on_line(9, "int8"), np.empty(9)))))
    thread.start()
    thread.join()
    assert found == [name(array), usual]
    with pytest.raises(MemoryError):
        empty_on_line(1 << 60, "int8")
    assert name(np.empty(9)) == usual


def test_arrays_that_come_and_go_give_their_memory_back() -> None:
    before = resident_bytes()
    for _ in range(200):
        empty_on_line(1 << 23, "int8").fill(1)
    assert resident_bytes() - before < 1 << 26


def resident_bytes() -> int:
    """The bytes of the process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


AFTER_THE_MODULE = """
import gc
import numpy as np
from weft.core import cache_lines
arrays = [cache_lines.empty_on_line(n, "float32") for n in (3, 1 << 16, 1 << 21)]
cache_lines._line_handler.cache_clear()
vars(cache_lines).clear()  # as at the end of the interpreter
gc.collect()
others = [bytes(200) for _ in range(1000)]
name = np._core.multiarray.get_handler_name
assert {name(array) for array in arrays} == {"weft_cache_lines"}
del arrays
print("freed")
"""


def test_arrays_that_outlive_the_module_are_freed() -> None:
    command = [sys.executable, "-c", AFTER_THE_MODULE]
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "165"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (found.stdout, found.stderr, found.returncode) == ("freed\n", "", 0)


def test_an_array_may_grow_and_be_copied() -> None:
    array = copy_on_line(np.arange(1000.0)[::-1])
    assert array.tolist() == [*range(999, -1, -1)]
    array.resize(2000, refcheck=False)
    assert (array[:3].tolist(), array[1000:].sum()) == ([999, 998, 997], 0)


def test_another_systems_arrays_begin_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_lines, "_line_handler", lambda: None)
    assert copy_on_line(np.arange(3)).tolist() == [0, 1, 2]


NETWORKS: dict[str, Callable[[], wf.nn.Module]] = {
    "linear": lambda: wf.nn.Linear(256, 128),
    "convolution": lambda: wf.nn.Conv2d(64, 64, 3),
    "embedding": lambda: wf.nn.Embedding(500, 64),
    "lstm": lambda: wf.nn.LSTM(64, 128),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_begin_on_lines_from_their_first_value_on(name: str) -> None:
    net = NETWORKS[name]()
    nets = [net, NETWORKS[name](), NETWORKS[name](), NETWORKS[name]()]
    state = {key: array_within_line(value.shape) for key, value in net.state_dict().items()}
    net.load_state_dict(state)
    large = [p for each in nets for p in each.parameters() if p._value.nbytes >= 1 << 16]
    assert len(large) >= len(nets)
    assert {at(p._value) % LINE for p in large} == {0}
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[key])
        assert at(value._value) != at(state[key]), "the memory is the user's"


def test_a_step_writes_parameters_in_their_places() -> None:
    net = wf.nn.Linear(256, 128)
    optimizer = wf.optim.SGD(net.parameters(), lr=0.1)
    step = wf.jit(lambda x: optimizer.minimize((net(x) ** 2).sum()))
    x, place = wf.ones((4, 256)), at(net.weight._value)
    for _ in range(3):
        step(x)
    assert at(net.weight._value) == place


def test_what_is_not_large_or_not_owned_stays_where_it_is() -> None:
    whole = array_within_line((1 << 15,))
    assert begins_within_line(whole)
    assert begins_within_line(whole.reshape(2, -1))
    assert not begins_within_line(whole[1:])
    assert not begins_within_line(copy_on_line(whole))
    assert not begins_within_line(np.empty(3))
    assert not begins_within_line("traced")
    source = wf.asarray(whole).detach() * 1.0
    target = wf.zeros(1 << 15)
    target.copy_(source)
    assert target.tolist() == whole.tolist()
