"""Functions with Python control flow, each with arguments that take it different ways.

They are written as a user would write them, without a thought of tracing. The tests run each as it
is, scripted, and scripted under `jit`, and compare.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ANN204, B905, PERF401, RET504
# The functions are written as a user would write them.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import weft as wf


@dataclass(frozen=True)
class Program:
    """A function, the arguments to call it with, and whether its gradient is compared."""

    function: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    gradient: bool
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.function.__name__


PROGRAMS: list[Program] = []


def program(*calls: Any, gradient: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Enter a function in the table; each call is one argument, or a tuple of them."""

    def enter(function: Any) -> Any:
        given = tuple(call if isinstance(call, tuple) else (call,) for call in calls)
        PROGRAMS.append(Program(function, given, gradient, options))
        return function

    return enter


VECTOR = [1.0, -2.0, 3.5, 0.5]

# --- branches ----------------------------------------------------------------------------------


@program(2.0, -3.0, gradient=True)
def if_else(x):
    if x > 0:
        y = x * 2
    else:
        y = -x
    return y


@program(2.0, -3.0, gradient=True)
def if_without_else(x):
    y = x * x
    if x > 0:
        y = y + x
    return y


@program(-5.0, 0.5, 5.0, gradient=True)
def elif_chain(x):
    if x < -1:
        y = x + 1
    elif x < 1:
        y = x * x
    elif x < 3:
        y = x * 7
    else:
        y = wf.sin(x)
    return y


@program(2.0, -3.0, gradient=True)
def nested_ifs(x):
    y = x
    if x > 0:
        z = x + 1
        if z > 2:
            y = z * 3
        else:
            y = z
    else:
        if x < -2:
            y = x * x
    return y


@program(2.0, -3.0, gradient=True)
def several_names(x):
    a, b = x, x * 2
    if a > 0:
        a, b = b, a
        c = a - b
    else:
        c = a * b
    return a + 2 * b + c


@program(2.0, -3.0)
def numbers_become_tensors(x):
    k = 1
    if x > 0:
        k = 5
    return x * k


@program(2.0, -3.0)
def same_number_stays(x):
    if x > 0:
        n, y = 3, x
    else:
        n, y = 3, -x
    return wf.ones((n,)) * y


@program(2.0, -3.0)
def tuple_in_branches(x):
    if x > 0:
        pair = (x, [x + 1])
    else:
        pair = (-x, [x * 2])
    return pair[0] + pair[1][0]


@program(2.0, -3.0)
def dict_in_branches(x):
    state = {"a": x, "b": x}
    if x > 0:
        state = {"a": x * 2, "b": x}
    return state["a"] - state["b"]


@program(2.0, -3.0)
def list_item_changed(x):
    items = [x, x + 1]
    if x > 0:
        items[0] = x * 10
    return items[0] + items[1]


@program(2.0, -3.0)
def dict_item_changed(x):
    found = {"y": x}
    if x > 0:
        found["y"] = found["y"] * 4
    else:
        found.update(y=x - 1)
    return found["y"]


@program(2.0, -3.0)
def list_appended_on_both_sides(x):
    items = []
    if x > 0:
        items.append(x)
    else:
        items.append(-x)
    return items[0]


@program(2.0, -3.0, gradient=True)
def updated_in_place(x):
    y = x * 1
    alias = y
    if x > 0:
        y += 10
    else:
        y *= 3
    return alias + y


@program(([1.0, 2.0, 3.0], 1.0), ([1.0, 2.0, 3.0], -1.0))
def element_written(x, flag):
    y = x + 0
    if flag > 0:
        y[1] = 7.0
    return y


@program(2.0, -3.0)
def name_unused_after_one_side(x):
    if x > 0:
        temporary = x + 1
        y = temporary * 2
    else:
        y = x
    return y


@program((2.0, True), (2.0, False), (-1.0, False))
def python_value_decides_around(x, flag):
    if flag:
        return x
    if x > 0:
        return x * 2
    return x * 3


# --- returns -----------------------------------------------------------------------------------


@program(2.0, -3.0, gradient=True)
def early_return(x):
    if x > 0:
        return x * 2
    return -x


@program(5.0, 1.5, 0.5, -1.0, gradient=True)
def several_returns(x):
    if x > 2:
        return x * x
    if x > 1:
        y = x + 1
        return y
    x = x - 1
    if x > -1:
        return x * 3
    return wf.exp(x)


@program(2.0, -3.0)
def returns_a_tuple(x):
    if x > 0:
        return x, (x + 1, 2)
    return -x, (x, 2)


@program(([1.0, 5.0, 2.0], 3.0), ([1.0, 2.0, 2.0], 3.0), ([9.0, 2.0, 2.0], 3.0))
def return_from_for(xs, limit):
    for x in xs:
        if x > limit:
            return x * 100
    return limit


@program((1.0, 50.0), (7.0, 50.0), (70.0, 50.0))
def return_from_while(x, limit):
    while x < limit:
        if x == 28:
            return x - 1000
        x = x * 2
    return x


@program(([[1.0, 2.0], [3.0, 4.0]], 3.0), ([[1.0, 2.0], [3.0, 4.0]], 9.0))
def return_from_nested_loops(rows, wanted):
    steps = 0
    for row in rows:
        for x in row:
            steps += 1
            if x == wanted:
                return steps
    return -1


@program(2.0, -3.0)
def return_in_with(x):
    with wf.no_grad():
        if x > 0:
            return x
    return x * 5


# --- while -------------------------------------------------------------------------------------


@program(3.0, 500.0, gradient=True, max_steps=20)
def doubling(x):
    while x < 100:
        x = x * 2
    return x


@program(6, 1, 27)
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@program(2.0, 30.0, gradient=True, max_steps=30)
def newton_root(a):
    x = a
    i = 0
    while abs(x * x - a) > 1e-4 and i < 25:
        x = 0.5 * (x + a / x)
        i += 1
    return x


@program(1.0, 60.0)
def while_true_break(x):
    count = 0
    while True:
        x = x * 2
        count += 1
        if x > 50:
            break
    return x + count


@program((10, 3), (2, 3))
def while_continue(n, skip):
    total = 0
    while n > 0:
        n -= 1
        if n == skip:
            continue
        total += n
    return total


@program(10, 0)
def while_else(n):
    found = -1
    while n > 0:
        if n == 5:
            found = 1
            break
        n = n - 2
    else:
        found = 0
    return found


@program(1.0, 9.0)
def while_with_two_breaks(x):
    steps = 0
    while steps < 100:
        steps += 1
        if x > 1000:
            break
        x = x * 3
        if x < 20 and x > 10:
            break
    return x - steps


@program((3, 4), (0, 2))
def nested_whiles(n, m):
    total = 0
    while n > 0:
        k = m
        while k > 0:
            total += n * k
            k -= 1
        n -= 1
    return total


@program(([1.0, 2.0], 40.0))
def while_on_vectors(x, limit):
    while x.sum() < limit:
        x = x + x
    return x


@program(([1.0, 2.0], 40.0))
def while_updates_in_place(x, limit):
    y = x + 0
    alias = y
    while y.sum() < limit:
        y += 1
    return alias


@program(20, 7)
def gcd_with_tuple(n):
    a, b = n, 12
    while b != 0:
        a, b = b, a % b
    return a


# --- for ---------------------------------------------------------------------------------------


@program(VECTOR, gradient=True)
def for_over_tensor(xs):
    total = 0.0
    for x in xs:
        total = total + x * x
    return total


@program(VECTOR, gradient=True)
def for_over_tensor_in_place(xs):
    total = wf.zeros(())
    for x in xs:
        total += x * x
    return total


@program([[1.0, 2.0], [3.0, 4.0], [-5.0, 6.0]], gradient=True)
def for_over_rows(rows):
    h = wf.zeros((2,))
    for row in rows:
        h = wf.tanh(h + row)
    return h.sum()


@program((VECTOR, 2.0), (VECTOR, 99.0))
def for_break(xs, limit):
    total = 0.0
    for x in xs:
        if x > limit:
            break
        total += x
    return total


@program(VECTOR, gradient=True)
def for_continue(xs):
    total = 0.0
    for x in xs:
        if x < 0:
            continue
        total += x * x
    return total


@program((VECTOR, 3.0), (VECTOR, 99.0))
def for_else(xs, limit):
    result = limit
    for x in xs:
        if x > limit:
            result = x
            break
    else:
        result = xs.sum()
    return result


@program(2.0, gradient=True)
def for_short_range(x):
    for i in range(3):
        x = x * (i + 1)
    return x


@program(1.001, gradient=True)
def for_long_range(x):
    y = x
    for i in range(50):
        y = y * x + i * 0.01
    return y


@program(5, 0)
def for_traced_range(n):
    total = 0
    for i in range(n):
        total += i
    return total


@program((2, 11, 3), (5, 5, 1))
def for_traced_range_with_step(a, b, c):
    total = 0
    for i in range(a, b, c):
        if i == 8:
            continue
        total = total * 10 + i
    return total


@program(6)
def for_range_downwards(n):
    total = 0
    for i in range(n, 0, -2):
        total = total * 10 + i
    return total


@program(VECTOR)
def for_long_range_indexes(xs):
    total = 0.0
    for i in range(12):
        total += xs[i % 4] * i
    return total


@program(2.0)
def for_long_range_of_python_items(x):
    scales = [float(k) for k in range(20)]
    for i in range(20):
        x = x + scales[i]
    return x


@program(2.0)
def list_appended_in_range(x):
    items = []
    for i in range(12):
        items.append(x * i)
    return wf.stack(items)


@program(VECTOR)
def list_appended_over_tensor(xs):
    items = []
    for x in xs:
        items.append(x * 2)
    return wf.stack(items)


@program(2.0)
def shapes_grow_in_range(x):
    xs = x.reshape(1)
    for _ in range(10):
        xs = wf.concat([xs, xs[-1:] * 2])
    return xs


@program(VECTOR)
def last_row_after_loop(xs):
    for x in xs:
        y = x * 2
    return x + y


@program((VECTOR, [2.0, 2.0, 3.0, 4.0]))
def for_over_zip(xs, ys):
    total = 0.0
    for x, y in zip(xs, ys):
        if x > 0:
            total += x * y
    return total


@program(VECTOR)
def for_over_enumerate(xs):
    total = 0.0
    for i, x in enumerate(xs):
        total += x * i
    return total


@program(VECTOR, gradient=True)
def recurrence(xs):
    a, b = 1.0, 0.5
    for x in xs:
        a, b = a + b * x, a
    return a - b


@program(([4.0, 1.0, 3.0, 2.0],))
def bubble_sort(xs):
    xs = xs + 0
    for i in range(3):
        for j in range(3 - i):
            if xs[j] > xs[j + 1]:
                swapped = xs[j + 1]
                xs[j + 1] = xs[j]
                xs[j] = swapped
    return xs


# --- expressions -------------------------------------------------------------------------------


@program(2.0, -3.0, gradient=True)
def conditional_expression(x):
    return x * 2 if x > 0 else wf.exp(x)


@program((2.0, 3.0), (2.0, -3.0), (-2.0, 3.0), (-2.0, -3.0))
def boolean_operators(x, y):
    if x > 0 and y > 0:
        return 1
    if x > 0 or not y > 0:
        return 2
    return 3


@program((0.0, 3.0), (2.0, -3.0), (2.0, 0.0))
def boolean_values(x, y):
    return (x or y) + 10 * (x and y)


@program(-1.0, 0.5, 1.0, 2.0)
def chained_comparison(x):
    return 1 if 0 <= x < 1 else (2 if 1 <= x <= 1.5 != x else 3)


@program((1.0, 2.0), (2.0, 1.0))
def minimum_and_maximum(a, b):
    return min(a, b) * 10 + max(a, b, 0.5)


@program((2.0, None), (2.0, 3.0))
def none_decides(x, y):
    if y is None or y > 2.5:
        return x
    return x + y


# --- calls -------------------------------------------------------------------------------------


def positive_part(x):
    if x > 0:
        return x
    return x * 0


def twice(f, x):
    return f(f(x))


@program(2.0, -3.0, gradient=True)
def calls_other_functions(x):
    return positive_part(x) + positive_part(-x) * 3


@program(2.0, -3.0)
def passes_functions(x):
    def shrink(v):
        if v > 1:
            return v / 2
        return v

    return twice(shrink, x) + twice(lambda v: v + 1 if v > 0 else v - 1, x)


class Counter:
    def __init__(self):
        self.count = 0

    def add(self, x):
        if x > 0:
            self.count = self.count + x
        return self.count

    def __call__(self, x):
        if x < 0:
            self.count = self.count - x
        return self.count


@program(2.0, -3.0)
def methods_and_attributes(x):
    counter = Counter()
    counter.add(x)
    counter(x - 1)
    return counter.add(x * 2)


@program(2.0, -3.0)
def closures_rebind(x):
    total = x

    def add(y):
        nonlocal total
        if y > 0:
            total = total + y

    add(x)
    add(x + 5)
    return total


@program(2.0, -2.0)
def recursion_on_python_numbers(x, n=3):
    if n == 0:
        return x
    if x > 0:
        x = x + n
    return recursion_on_python_numbers(x, n - 1)


@program(2.0, -3.0)
def raises_or_not(x):
    if x > 1000:
        raise ValueError("too large")
    return x + 1


@program(2.0, -3.0)
def try_around_concrete(x):
    try:
        value = {"a": 1}["b"]
    except KeyError:
        value = 2
    finally:
        x = x + 1
    return x * value


@program(2.0, -3.0)
def match_statement(x):
    match ("scale", 3):
        case ("scale", factor):
            if x > 0:
                return x * factor
        case _:
            return x
    return x


@program(2.0)
def default_arguments(x, scale=3.0, *, shift=1.0):
    if x > 0:
        return x * scale + shift
    return x


@program(2.0, -3.0)
def walrus(x):
    if (y := x * 2) > 1:
        return y
    return y - 1
