"""Operators of classical machine learning that work on numbers: trees, tables, n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import rule
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
DOMAIN = "ai.onnx.ml"
COMPARISONS: dict[int, Any] = {
    0: wf.less_equal, 1: wf.less, 2: wf.greater_equal, 3: wf.greater, 4: wf.equal,
    5: wf.not_equal,
}  # fmt: skip
"""How a node compares a feature with its split, by the format's code."""
MEMBER = 6
"""The code of a node that asks whether a feature is in a set."""


@rule("ArrayFeatureExtractor", domain=DOMAIN)
def array_features(call: Call, x: Tensor, indices: Tensor) -> Any:
    """Some elements of the last axis."""
    out = wf.take(x, indices.astype("int64").reshape((-1,)), axis=-1)
    return out.reshape((1, -1)) if x.ndim == 1 else out


@rule("Binarizer", domain=DOMAIN)
def binarize(call: Call, x: Tensor) -> Any:
    """One above a threshold, else zero."""
    return (x > call["threshold"]).astype(x.dtype)


@rule("Scaler", domain=DOMAIN)
def scale(call: Call, x: Tensor) -> Tensor:
    """Features shifted and scaled."""
    wide = x.astype("float32")
    return (wide - wf.asarray(call["offset"], dtype="float32")) * wf.asarray(
        call["scale"], dtype="float32"
    )


@rule("LabelEncoder", domain=DOMAIN)
def encode_labels(call: Call, x: Tensor) -> Tensor:
    """Numbers looked up in a table; others get a default."""
    keys, values, default = _table(call)
    order = np.argsort(keys, kind="stable")
    ordered = wf.asarray(keys[order]).astype(x.dtype)
    places = wf.clip(wf.searchsorted(ordered, x.reshape((-1,))), 0, len(keys) - 1)
    places = places.reshape(x.shape)
    hit = wf.equal(wf.take(ordered, places.reshape((-1,)), axis=0).reshape(x.shape), x)
    found = wf.take(wf.asarray(values[order]), places.reshape((-1,)), axis=0).reshape(x.shape)
    return wf.where(hit, found, wf.asarray(default))


def _table(call: Call) -> tuple[Array, Array, Array]:
    """The keys, the values and the default, all of them numbers."""
    if call.get("keys_strings") or call.get("values_strings"):
        raise call.refuse("strings: Weft computes with numbers")
    tensor = call.get("keys_tensor")
    keys = tensor if tensor is not None else np.array(
        call.get("keys_int64s") or call.get("keys_floats") or []
    )  # fmt: skip
    values, default = call.get("values_tensor"), call.get("default_tensor")
    if values is None and call.get("values_int64s"):
        values, default = np.array(call["values_int64s"], np.int64), call["default_int64"]
    elif values is None:
        values = np.array(call.get("values_floats") or [], np.float32)
        default = call["default_float"]
    if default is None:
        default = -1 if values.dtype.kind in "iu" else 0
    if not len(keys) or len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys for {len(values)} values")
    return keys, values, np.array(default, values.dtype).reshape(())


# --- trees ---------------------------------------------------------------------------------------


@rule("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(call: Call, x: Tensor) -> Tensor:
    """The sum, mean or extreme of what trees say of each sample."""
    if call.get("post_transform", 0):
        raise call.refuse("a transform of what trees say")
    targets = call["n_targets"]
    call.check_room([x.shape[0], targets])
    weights = wf.asarray(call["leaf_weights"]).astype(x.dtype)
    ids = np.array(call["leaf_targetids"])
    used = sorted({int(each) for each in ids if 0 <= each < targets})
    members = _member_sets(call)
    values, hits = [], []
    for root in call["tree_roots"]:
        leaf = _leaf_of_samples(call, x, int(root), members)
        values.append(wf.take(weights, leaf, axis=0))
        hits.append(wf.take(wf.asarray(ids), leaf, axis=0))
    votes, voted = wf.stack(values), wf.stack(hits)  # [trees, samples]
    kind = call["aggregate_function"]
    combine = {0: wf.sum, 1: wf.sum, 2: wf.min, 3: wf.max}[kind]
    neutral = _neutral(call, x)
    columns = [
        combine(wf.where(wf.equal(voted, number), votes, neutral), axis=0) for number in used
    ]
    blank = wf.full((x.shape[0], targets), neutral, dtype=x.dtype)
    out = wf.index_copy(blank, 1, wf.asarray(np.array(used)), wf.stack(columns, axis=1))
    return out / len(call["tree_roots"]) if kind == 0 else out


def _neutral(call: Call, x: Tensor) -> Any:
    """What a tree adds to a target that its leaf is not for."""
    limits = wf.finfo(x.dtype)
    return {2: float(limits.max), 3: float(limits.min)}.get(call["aggregate_function"], 0.0)


def _member_sets(call: Call) -> dict[int, list[float]]:
    """The sets that nodes ask about, in the order in which a walk from the roots meets them."""
    values = call.get("membership_values")
    sets: dict[int, list[float]] = {}
    if values is None:
        return sets
    rows: list[list[float]] = [[]]
    for value in values.reshape(-1).tolist():
        if np.isnan(value):
            rows.append([])
        else:
            rows[-1].append(value)
    waiting = [int(root) for root in reversed(call["tree_roots"])]
    modes, seen, place = call["nodes_modes"].reshape(-1), set(), 0
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if modes[node] == MEMBER:
            sets[node] = rows[place]
            place += 1
        waiting += [
            int(call[f"nodes_{side}nodeids"][node])
            for side in ("false", "true")  # the branch for yes is walked first
            if not call[f"nodes_{side}leafs"][node]
        ]
    return sets


def _leaf_of_samples(call: Call, x: Tensor, root: int, members: dict[int, list[float]]) -> Tensor:
    """The leaf that each sample ends in: all samples go down the tree together."""
    answers = _answers(call, x, members)  # [samples, nodes]
    steps = {side: wf.asarray(np.array(call[f"nodes_{side}nodeids"])) for side in ("true", "false")}
    ends = {side: wf.asarray(np.array(call[f"nodes_{side}leafs"]) != 0) for side in steps}
    place = wf.full((x.shape[0],), root, dtype="int64")
    done = wf.zeros((x.shape[0],), dtype="bool")
    for _ in range(len(call["nodes_modes"].reshape(-1))):
        node = wf.where(done, 0, place)
        yes = wf.gather(answers, 1, node[:, None])[:, 0]
        new = wf.where(
            yes, wf.take(steps["true"], node, axis=0), wf.take(steps["false"], node, axis=0)
        )
        ended = wf.where(
            yes, wf.take(ends["true"], node, axis=0), wf.take(ends["false"], node, axis=0)
        )
        place, done = wf.where(done, place, new), wf.logical_or(done, ended)
    return place


def _answers(call: Call, x: Tensor, members: dict[int, list[float]]) -> Tensor:
    """What each node says to each sample."""
    splits = wf.asarray(call["nodes_splits"].reshape(-1)).astype(x.dtype)
    features = wf.take(x, wf.asarray(np.array(call["nodes_featureids"])), axis=1)
    missing = np.array(call.get("nodes_missing_value_tracks_true") or [0] * splits.shape[0]) != 0
    columns = []
    for node, mode in enumerate(call["nodes_modes"].reshape(-1).tolist()):
        value, split = features[:, node], splits[node]
        if mode == MEMBER:
            answer = wf.zeros((x.shape[0],), dtype="bool")
            for member in members[node]:
                answer = wf.logical_or(answer, wf.equal(value, member))
        else:
            compare = COMPARISONS[mode]
            answer = compare(value, split)
        columns.append(wf.logical_or(answer, wf.isnan(value)) if missing[node] else answer)
    return wf.stack(columns, axis=1)


# --- n-grams -------------------------------------------------------------------------------------


@rule("TfIdfVectorizer")
def count_ngrams(call: Call, x: Tensor) -> Tensor:
    """How often each n-gram of a table occurs in a row, weighted."""
    if call.get("pool_strings"):
        raise call.refuse("strings: Weft computes with numbers")
    rows = x.reshape((1, -1)) if x.ndim < 2 else x
    columns = call["ngram_indexes"]
    width = max(columns) + 1
    call.check_room([rows.shape[0], width])
    counts: dict[int, Tensor] = {}
    for gram, column in zip(_grams(call), columns, strict=True):
        if call["min_gram_length"] <= len(gram) <= call["max_gram_length"]:
            own = _occurrences(call, rows, gram)
            counts[column] = counts[column] + own if column in counts else own
    total = wf.zeros((rows.shape[0], width))
    if counts:
        places = wf.asarray(np.array(list(counts), np.int64))
        total = wf.index_copy(total, 1, places, wf.stack(list(counts.values()), axis=1))
    weights = call.get("weights")
    total = total if call["mode"] == "TF" or call["mode"] == "TFIDF" else wf.minimum(total, 1.0)
    if weights and call["mode"] != "TF":
        order = np.zeros(width, np.float32)
        order[np.array(columns)] = np.array(weights, np.float32)
        total = total * wf.asarray(order)
    return total.reshape((-1,)) if x.ndim < 2 else total


def _grams(call: Call) -> list[list[int]]:
    pool, starts = call.get("pool_int64s") or [], [*call["ngram_counts"]]
    grams = []
    for size, start in enumerate(starts, 1):
        stop = starts[size] if size < len(starts) else len(pool)
        if not 0 <= start <= stop <= len(pool):
            raise ValueError(f"ngram_counts {starts} of a pool of {len(pool)}")
        grams += [pool[i : i + size] for i in range(start, stop, size)]
    return grams


def _occurrences(call: Call, rows: Tensor, gram: list[int]) -> Tensor:
    """How often a gram stands in each row, with up to so many elements left out between two."""
    total = wf.zeros((rows.shape[0],))
    length = int(rows.shape[1])
    skips = range(1, call["max_skip_count"] + 2) if len(gram) > 1 else range(1, 2)
    for step in skips:
        count = length - step * (len(gram) - 1)
        if count <= 0:
            break
        hit = None
        for place, item in enumerate(gram):
            own = wf.equal(rows[:, place * step : place * step + count], item)
            hit = own if hit is None else wf.logical_and(hit, own)
        assert hit is not None
        total = total + wf.sum(hit.astype("float32"), axis=1)
    return total
