"""Sorts, searches and the first few in order on a card.

Elements become words of key and place, no two of which are equal (`llvm/sort_keys.py`), so the
order is the stable one whatever runs when. A block sorts a chunk of a row in shared memory by a
bitonic network. Sorted chunks are merged in pairs: each word counts by a binary search how many of
the other run come before it. Where few are wanted of a row, each chunk gives only its first few,
and these are chunks again. At last the places in the words say which elements to take.
"""

from __future__ import annotations

from functools import cache
from math import prod

from weft.compiler.plan.launch import Kind, Launch, no_numbers, one, static_shape
from weft.compiler.targets.cuda.binding import Binding, Run, aligned_size, binder, in_order
from weft.compiler.targets.cuda.code import load_text_kernel
from weft.compiler.targets.cuda.device_text import DeviceBuilder, TextKernel
from weft.compiler.targets.llvm.sort_keys import MOST, Keys, search_line
from weft.core.records import frozen
from weft.ir.graph import GraphNode
from weft.ir.kinds import Sort

__all__ = ["Step", "bind_steps", "first_of_row", "is_sorting", "sort_kernels", "sort_launch"]

CHUNK = 2048
"""Words that a block sorts in shared memory, at most."""
_SMALLEST = 64
_THREADS = 256


def is_sorting(node: GraphNode) -> bool:
    """Whether a node sorts or searches numbers that are not complex."""
    is_one = isinstance(node.primitive.kind, Sort) or node.primitive.name == "searchsorted"
    if not is_one or node.operands[0].type.dtype.is_complex:
        return False
    dims = node.operands[0].type.shape
    return all(dim < MOST for dim in dims if isinstance(dim, int))


def sort_launch(node: GraphNode) -> Launch:
    """The launch of a node that sorts or searches."""
    name, params = node.primitive.name, node.params
    words: tuple[object, ...] = (params.get("side", ""),)
    if name != "searchsorted":
        descending = params["largest"] if name == "top_k" else params["descending"]
        words = (params["axis"], int(descending), params.get("k", -1))
    return Launch(
        Kind.SORT, name, ("sort" if name != "searchsorted" else "search", name, *map(str, words)),
        (*node.operands, *node.results), node.results, no_numbers, one, one,
    )  # fmt: skip


# --- kernels -------------------------------------------------------------------------------------


@frozen(slots=False)
class SortKernels:
    """The kernels that sort rows of a kind, in chunks of a length."""

    elements: TextKernel
    """Words of a row's elements, each chunk sorted, its first few kept."""
    words: TextKernel
    """The same of words."""
    merge: TextKernel
    take: TextKernel


@cache
def sort_kernels(keys: Keys, values: bool, indices: bool, chunk: int = CHUNK) -> SortKernels:
    """The kernels for a kind of keys, that give values, places or both."""
    return SortKernels(
        _sort_chunks(keys, chunk, elements=True),
        _sort_chunks(keys, chunk, elements=False),
        _merge_runs(keys),
        _take_elements(keys, values, indices),
    )


def first_of_row(out: DeviceBuilder, row: str, count: str, stride: str) -> str:
    """The number of a row's first element, where neighbours in a row are `stride` apart."""
    before, inner = out.div(row, stride), out.rem(row, stride)
    return out.add(out.mul(out.mul(before, count), stride), inner)


def _sort_chunks(keys: Keys, chunk: int, *, elements: bool) -> TextKernel:
    """A block sorts a chunk of a row's words, and writes the first `keep` of them."""
    threads = max(1, min(_THREADS, chunk // 2))
    parameters = ("ptr %source", "ptr %target", "i64 %count", "i64 %stride", "i64 %keep",
                  "i64 %chunks")  # fmt: skip
    out = DeviceBuilder("sort_elements" if elements else "sort_words", parameters, threads)
    source, target, count, stride, keep, chunks = out.parameters
    held = out.shared_array(keys.word, chunk)
    row, number = out.div(out.block_number, chunks), out.rem(out.block_number, chunks)
    first = out.mul(number, chunk)
    if elements:
        line = out.at(keys.kind, source, first_of_row(out, row, count, stride))
    else:
        line = out.at(keys.word, source, out.mul(row, count))
    with out.loop(out.thread, chunk, threads) as i:
        index = out.add(first, i)
        keys.store(out, "-1", held, i)  # behind the row stand words that come last
        with out.when(out.test("slt", index, count)):
            if elements:
                word = keys.word_of(out, line, stride, index)
            else:
                word = keys.load(out, line, index)
            keys.store(out, word, held, i)
    out.wait()
    _sort_network(out, keys, held, chunk, threads)
    start = out.mul(out.block_number, keep)
    with out.loop(out.thread, keep, threads) as i:
        keys.store(out, keys.load(out, held, i), target, out.add(start, i))
    return out.kernel()


def _sort_network(out: DeviceBuilder, keys: Keys, held: str, chunk: int, threads: int) -> None:
    """A bitonic network: runs of twice the length, each merged by exchanges at halving distance."""
    length = out.variable(2)
    with out.repeat():
        out.leave_unless(out.test("sle", length.value, chunk))
        distance = out.variable(out.combine("lshr", length.value, 1))
        with out.repeat():
            out.leave_unless(out.test("sgt", distance.value, 0))
            below = out.sub(distance.value, 1)
            with out.loop(out.thread, chunk // 2, threads) as pair:
                low = out.combine("and", pair, below)
                left = out.add(out.mul(out.sub(pair, low), 2), low)
                right = out.add(left, distance.value)
                rises = out.test("eq", out.combine("and", left, length.value), 0)
                a, b = (keys.load(out, held, place) for place in (left, right))
                is_above = out.put(f"icmp ugt {keys.word} {a}, {b}", "i1")
                swaps = out.put(f"icmp eq i1 {is_above}, {rises}", "i1")
                for place, yes, no in ((left, b, a), (right, a, b)):
                    word = out.put(f"select i1 {swaps}, {keys.word} {yes}, {keys.word} {no}")
                    keys.store(out, word, held, place)
            out.wait()
            distance.value = out.combine("lshr", distance.value, 1)
        length.value = out.mul(length.value, 2)


def _merge_runs(keys: Keys) -> TextKernel:
    """Pairs of sorted runs of a length in rows of words become one: each word finds its place."""
    parameters = ("ptr %source", "ptr %target", "i64 %total", "i64 %row", "i64 %run")
    out = DeviceBuilder("merge_runs", parameters, _THREADS)
    source, target, total, row, run = out.parameters
    number = out.add(out.mul(out.block_number, _THREADS), out.thread)
    with out.when(out.test("slt", number, total)):
        place = out.rem(number, row)
        line = out.sub(number, place)
        both = out.mul(run, 2)
        inside = out.rem(place, both)
        pair = out.sub(place, inside)
        is_left = out.test("slt", inside, run)
        own = out.select(is_left, inside, out.sub(inside, run))
        # The other run: behind this one, where that is not behind the row; or before it.
        behind = out.least(out.add(pair, run), row)
        start = out.select(is_left, behind, pair)
        rest = out.sub(out.least(out.add(behind, run), row), behind)
        count = out.select(is_left, rest, run)
        word = keys.load(out, source, number)
        low, left = out.variable(0), out.variable(count)
        first = out.add(line, start)
        with out.repeat():
            out.leave_unless(out.test("sgt", left.value, 0))
            half = out.combine("lshr", left.value, 1)
            middle = out.add(low.value, half)
            other = keys.load(out, source, out.add(first, middle))
            # Words behind the row are equal: those of the left run come first.
            less = out.put(f"icmp ult {keys.word} {other}, {word}", "i1")
            same = out.put(f"icmp eq {keys.word} {other}, {word}", "i1")
            is_right = out.put(f"xor i1 {is_left}, true", "i1")
            same_before = out.put(f"and i1 {same}, {is_right}", "i1")
            is_before = out.put(f"or i1 {less}, {same_before}", "i1")
            above = out.sub(out.sub(left.value, half), 1)
            low.value = out.select(is_before, out.add(middle, 1), low.value)
            left.value = out.select(is_before, above, half)
        to = out.add(out.add(line, pair), out.add(own, low.value))
        keys.store(out, word, target, to)
    return out.kernel()


def _take_elements(keys: Keys, values: bool, indices: bool) -> TextKernel:
    """The elements, or places, that the first words of each row say."""
    results = [name for name, given in (("values", values), ("indices", indices)) if given]
    pointers = ("ptr %words", "ptr %x", *[f"ptr %{name}" for name in results])
    numbers = ("i64 %total", "i64 %count", "i64 %stride", "i64 %first", "i64 %row")
    out = DeviceBuilder("take_elements", (*pointers, *numbers), _THREADS)
    words, x, *targets = out.parameters[: len(pointers)]
    total, count, stride, first, row_length = out.parameters[len(pointers) :]
    number = out.add(out.mul(out.block_number, _THREADS), out.thread)
    with out.when(out.test("slt", number, total)):
        row, i = out.div(number, first), out.rem(number, first)
        word = keys.load(out, words, out.add(out.mul(row, row_length), i))
        place = keys.place(out, word)
        target = out.add(first_of_row(out, row, first, stride), out.mul(i, stride))
        if values:
            source = out.add(first_of_row(out, row, count, stride), out.mul(place, stride))
            found = out.put(f"load {keys.kind}, ptr {out.at(keys.kind, x, source)}")
            out.do(f"store {keys.kind} {found}, ptr {out.at(keys.kind, targets[0], target)}")
        if indices:
            out.do(f"store i64 {place}, ptr {out.at('i64', targets[-1], target)}")
    return out.kernel()


@cache
def search_kernel(keys: Keys, side: str) -> TextKernel:
    """The kernel of `searchsorted`: a thread for each value."""
    parameters = ("ptr %x", "ptr %wanted", "ptr %result", "i64 %n", "i64 %m", "i64 %total")
    out = DeviceBuilder("search", parameters, _THREADS)
    x, wanted, result, n, m, total = out.parameters
    number = out.add(out.mul(out.block_number, _THREADS), out.thread)
    with out.when(out.test("slt", number, total)):
        key = keys.key(out, wanted, number)
        line = out.at(keys.kind, x, out.mul(out.div(number, m), n))
        place = search_line(out, keys, line, n, key, side)
        out.store(place, out.at("i64", result, number))
    return out.kernel()


# --- launches ------------------------------------------------------------------------------------


@frozen(slots=False)
class Step:
    """One launch: kernel, blocks, names of arrays, numbers."""

    kernel: TextKernel
    blocks: int
    arrays: tuple[str, ...]
    numbers: tuple[int, ...]


def _blocks(total: int) -> int:
    return -(-total // _THREADS)


def chunk_of(count: int) -> int:
    """The length of chunks for rows of so many elements."""
    chunk = _SMALLEST
    while chunk < min(count, CHUNK):
        chunk *= 2
    return chunk


def sort_steps(
    kernels: SortKernels, chunk: int, sizes: tuple[int, int, int, int], results: tuple[str, ...]
) -> list[Step]:
    """The launches that put the first of each row in order: rows, count, stride, first.

    Words lie in the arrays `even` and `odd` in turn.
    """
    rows, count, stride, first = sizes
    if not rows or not count or not first:
        return []
    arrays = ["even", "odd"]
    chunks = -(-count // chunk)
    is_few = 2 * first <= chunk
    keep = first if is_few else chunk
    steps = [Step(kernels.elements, rows * chunks, ("x", arrays[0]),
                  (count, stride, keep, chunks))]  # fmt: skip
    length = chunks * keep
    while is_few and chunks > 1:
        chunks = -(-length // chunk)
        steps.append(Step(kernels.words, rows * chunks, (*arrays,), (length, 1, keep, chunks)))
        arrays.reverse()
        length = chunks * keep
    run = chunk
    while not is_few and run < length:
        total = rows * length
        steps.append(Step(kernels.merge, _blocks(total), (*arrays,), (total, length, run)))
        arrays.reverse()
        run *= 2
    total = rows * first
    steps.append(
        Step(kernels.take, _blocks(total), (arrays[0], "x", *results),
             (total, count, stride, first, length))
    )  # fmt: skip
    return steps


def words_of(chunk: int, sizes: tuple[int, int, int, int]) -> int:
    """How many words each of the two arrays holds, at most."""
    rows, count, _, first = sizes
    chunks = -(-count // chunk)
    return rows * chunks * (first if 2 * first <= chunk else chunk)


@binder("sort")
def bind_sort(binding: Binding, launch: Launch) -> Run:
    """What runs a sort, its order, or the first few."""
    assert isinstance(launch.kernel, tuple)
    name, axis, descending, first = launch.kernel[1], *map(int, launch.kernel[2:])
    kind = launch.values[0].type
    shape = static_shape(kind.shape, binding.sizes)
    count, stride = shape[axis], prod(shape[axis + 1 :])
    sizes = (prod(shape[:axis]) * stride, count, stride, count if first < 0 else first)
    keys = Keys(kind.dtype, bool(descending))
    chunk = chunk_of(count)
    kernels = sort_kernels(keys, name != "argsort", name != "sort", chunk)
    names = {"sort": ("values",), "argsort": ("indices",), "top_k": ("values", "indices")}[name]
    cells = {
        each: binding.cell(launch, value)
        for each, value in zip(("x", *names), launch.values, strict=True)
    }
    size = aligned_size(words_of(chunk, sizes) * keys.word_bytes)
    cells |= {"even": binding.workspace_cell(0, size), "odd": binding.workspace_cell(size, size)}
    return bind_steps(binding, sort_steps(kernels, chunk, sizes, names), cells)


@binder("search")
def bind_search(binding: Binding, launch: Launch) -> Run:
    """What runs a search in lines."""
    assert isinstance(launch.kernel, tuple)
    line, wanted = (static_shape(value.type.shape, binding.sizes) for value in launch.values[:2])
    kernel = search_kernel(Keys(launch.values[0].type.dtype), launch.kernel[2])
    total = prod(wanted)
    steps = [Step(kernel, _blocks(total), ("x", "wanted", "result"),
                  (line[-1], wanted[-1], total))] if total else []  # fmt: skip
    cells = {
        name: binding.cell(launch, value)
        for name, value in zip(("x", "wanted", "result"), launch.values, strict=True)
    }
    return bind_steps(binding, steps, cells)


def bind_steps(binding: Binding, steps: list[Step], cells: dict[str, int]) -> Run:
    """What puts launches of kernels in LLVM's language on the stream, one after the other."""
    runs = []
    for step in steps:
        table = [cells[name] for name in step.arrays]
        table += [binding.number(number) for number in step.numbers]
        function = load_text_kernel(step.kernel, binding.stream.device)
        runs.append(binding.kernel_run(function, step.blocks, step.kernel.threads, table))
    return in_order(runs)
