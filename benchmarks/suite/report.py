"""The table: times, ratios, shares of the machine's peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from suite.frameworks import FRAMEWORKS
from suite.measuring import Row, agreement, differences
from suite.task import Workload

Line = list[str]
FIRST_AIM, PEAK_AIM = 0.3, 0.8
"""For the first call as a multiple of JAX's, and for peak memory as one of the leanest peer's."""


def ratio(row: Row, clock: str, rivals: Sequence[str] = ()) -> float | None:
    """Weft's best time as a multiple of the best peer's, or of the best of those named."""
    peer = best_peer(row, clock, rivals)
    if peer is None or clock not in row.get("weft", {}):
        return None
    least = row[peer][clock]["best"]
    return float(row["weft"][clock]["best"] / least) if least > 0 else None


def best_peer(row: Row, clock: str, rivals: Sequence[str] = ()) -> str | None:
    """The fastest of the peers, or of those named."""
    times = {n: f[clock]["best"] for n, f in row.items() if clock in f and n != "weft"}
    chosen = [name for name in times if not rivals or name in rivals]
    return min(chosen, key=times.__getitem__, default=None)


def digest(
    row: Row, workload: Workload, limits: Mapping[str, float] | None, quick: bool
) -> dict[str, Any]:
    """What a row says: ratios, the aim, shares of the machine's peak, whether values agree."""
    aimed = ratio(row, "wall", workload.rivals)
    least = least_seconds(workload, quick, limits) if limits else 0.0
    threads = limits["threads"] if limits else 1
    return {
        "best_peer": best_peer(row, "wall"),
        "ratio": ratio(row, "wall"),
        "processor_ratio": ratio(row, "processor"),
        "aim": workload.aim,
        "rivals": list(workload.rivals),
        "ratio_to_rivals": aimed,
        "met": None if aimed is None or workload.aim is None else aimed <= workload.aim,
        "least_seconds": least,
        "share_of_peak": _shares(row, "wall", least),
        "share_of_peak_by_processor": _shares(row, "processor", least * threads),
        "differences": differences(row),
        "tolerance": workload.tolerance,
        "note": agreement(row, workload.tolerance),
    }


def start_digest(states: Mapping[str, Any]) -> dict[str, Any]:
    """Weft's first call as a multiple of JAX's, its peak memory as one of the leanest peer's."""
    done = {n: found for n, found in states.items() if "warm" in found}
    cold = {n: found["cold"]["first_seconds"] for n, found in done.items()}
    peaks = {n: found["warm"]["peak_bytes"] for n, found in done.items()}
    others = [size for name, size in peaks.items() if name != "weft"]
    both = "weft" in cold and "jax" in cold
    return {
        "first_call_to_jax": cold["weft"] / cold["jax"] if both else None,
        "peak_memory_to_best_peer": peaks["weft"] / min(others)
        if others and "weft" in peaks
        else None,
    }


def least_seconds(workload: Workload, quick: bool, limits: Mapping[str, float]) -> float:
    """What the machine needs at least, by operations or by bytes."""
    sizes = {**workload.sizes, **(workload.quick if quick else {})}
    return max(
        workload.flops(sizes) / limits["flops"],
        workload.bytes(sizes) / limits["bytes"],
    )


def times_table(
    rows: Mapping[str, Row],
    workloads: Mapping[str, Workload],
    limits: Mapping[str, float] | None,
    quick: bool,
) -> str:
    """One line per workload: best times, Weft's ratios and share of the peak."""
    names = [n for n in FRAMEWORKS if any(n in row for row in rows.values())]
    heads = ["ms, best ± spread", *(FRAMEWORKS[n].title for n in names)]
    lines = [[*heads, "ratio", "aim", "found", "of peak", "cpu ms", "cpu ratio", "cpu of peak"]]
    for key, row in rows.items():
        found = digest(row, workloads[key], limits, quick)
        cells = [_time(row.get(name)) for name in names]
        cells += [_number(found["ratio"]), _aim(workloads[key]), _number(found["ratio_to_rivals"])]
        cells.append(_percent(found["share_of_peak"].get("weft")))
        cells += [_milliseconds(row.get("weft", {}).get("processor"))]
        cells.append(_number(found["processor_ratio"]))
        cells.append(_percent(found["share_of_peak_by_processor"].get("weft")))
        lines.append([workloads[key].title, *cells])
    return aligned(lines)


def card_table(
    rows: Mapping[str, Row], workloads: Mapping[str, Workload], quick: bool = False
) -> str:
    """First calls and memory on a card, and tokens a second where a workload writes some."""
    names = [n for n in FRAMEWORKS if any(n in row for row in rows.values())]
    lines = [["first call s / peak GB", *(FRAMEWORKS[n].title for n in names)]]
    for key, row in rows.items():
        cells = [_first_and_peak(row.get(name)) for name in names]
        lines.append([workloads[key].title, *cells])
        sizes = {**workloads[key].sizes, **(workloads[key].quick if quick else {})}
        if "tokens" in sizes:
            count = sizes["tokens"] * sizes["batch"]
            rates = [
                f"{count / row[n]['wall']['best']:.0f}" if "wall" in row.get(n, {}) else "–"
                for n in names
            ]
            lines.append(["  tokens a second", *rates])
    return aligned(lines)


def _first_and_peak(found: Mapping[str, Any] | None) -> str:
    if found is None or "first_seconds" not in found:
        return "–"
    peak = found.get("card", {}).get("peak_bytes")
    return f"{found['first_seconds']:.2f}" + ("" if peak is None else f" / {peak / 1e9:.2f}")


def start_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Import, first call without and with caches, and peak memory."""
    head = ["in a process of its own", "framework", "import s", "build s", "first call cold s",
            "warm s", "memory of import MB", "peak MB", "peak MB, cold"]  # fmt: skip
    lines = [head]
    for workload, frameworks in found.items():
        for name, states in frameworks.items():
            title = FRAMEWORKS[name].title
            if "error" in states:
                lines.append([workload, title, states["error"][:40], *[""] * 6])
                continue
            cold, warm = states["cold"], states["warm"]
            sizes = [warm["import_bytes"], warm["peak_bytes"], cold["peak_bytes"]]
            seconds = [warm["import_seconds"], warm["build_seconds"]]
            seconds += [cold["first_seconds"], warm["first_seconds"]]
            cells = [f"{s:.2f}" for s in seconds] + [f"{size / 1e6:.0f}" for size in sizes]
            lines.append([workload, title, *cells])
    return "\n".join([aligned(lines), *map(_start_line, found, found.values())])


def _start_line(workload: str, states: Mapping[str, Any]) -> str:
    """The two ratios that have an aim."""
    found = start_digest(states)
    first, peak = _number(found["first_call_to_jax"]), _number(found["peak_memory_to_best_peer"])
    aims = f"(aim ≤ {FIRST_AIM}), peak memory {peak or '–'} of the leanest peer's (≤ {PEAK_AIM})"
    return f"{workload}: first call {first or '–'} of JAX's {aims}"


def kernel_lines(profiles: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """Where Weft's time goes in the workloads where it is behind."""
    for workload, profile in profiles.items():
        if "kernels" not in profile:
            continue
        gaps = profile["gaps"] * 1e3
        yield f"{workload}: {profile['seconds'] * 1e3:.2f} ms in kernels, {gaps:.2f} ms between"
        for row in profile["kernels"]:
            rates = f"{row['gflops']:6.1f} GFLOP/s {row['gbytes']:6.1f} GB/s"
            yield f"  {100 * row['share']:3.0f} %  {row['calls']:3d}×  {rates}  {row['fused']}"


def aligned(lines: list[Line]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned_line(line, widths) for line in lines)


def _aligned_line(line: Line, widths: list[int]) -> str:
    first, *rest = zip(line, widths, strict=True)
    cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return "  ".join(cells).rstrip()


def _time(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    if "wall" not in found:
        return "failed"
    wall = found["wall"]
    return f"{_milliseconds(wall)} ±{100 * wall['spread']:.0f}%"


def _milliseconds(clock: Mapping[str, float] | None) -> str:
    if clock is None:
        return ""
    value = clock["best"] * 1e3
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _shares(row: Row, clock: str, least: float) -> dict[str, float]:
    times = {name: found[clock]["best"] for name, found in row.items() if clock in found}
    return {name: least / time for name, time in times.items() if least and time}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _aim(workload: Workload) -> str:
    if workload.aim is None:
        return ""
    rival = f" of {FRAMEWORKS[workload.rivals[0]].title}" if workload.rivals else ""
    return f"≤ {workload.aim:.1f}{rival}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
