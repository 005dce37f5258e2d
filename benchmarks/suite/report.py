"""The table: times, ratios, shares of the machine's peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from suite.frameworks import FRAMEWORKS
from suite.measuring import Row
from suite.task import Workload

Line = list[str]


def ratio(row: Row, clock: str) -> float | None:
    """Weft's best time as a multiple of the best peer's."""
    times = {name: found[clock]["best"] for name, found in row.items() if clock in found}
    peers = [time for name, time in times.items() if name != "weft"]
    return times["weft"] / min(peers) if peers and "weft" in times and min(peers) > 0 else None


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
    lines = [[*heads, "ratio", "aim", "of peak", "cpu ms", "cpu ratio", "cpu of peak"]]
    for key, row in rows.items():
        workload = workloads[key]
        cells = [_time(row.get(name)) for name in names]
        aim = "" if workload.aim is None else f"≤ {workload.aim:.1f}"
        own = row.get("weft", {})
        least = least_seconds(workload, quick, limits) if limits else 0.0
        cells += [_number(ratio(row, "wall")), aim, _share(least, own.get("wall"))]
        cells += [_milliseconds(own.get("processor")), _number(ratio(row, "processor"))]
        threads = limits["threads"] if limits else 1
        cells.append(_share(least * threads, own.get("processor")))
        lines.append([workload.title, *cells])
    return aligned(lines)


def start_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Import, first call without and with caches, and peak memory."""
    head = ["in a process of its own", "framework", "import s", "first call cold s", "warm s",
            "memory of import MB", "peak MB", "peak MB, cold"]  # fmt: skip
    lines = [head]
    for workload, frameworks in found.items():
        for name, states in frameworks.items():
            title = FRAMEWORKS[name].title
            if "error" in states:
                lines.append([workload, title, states["error"][:40], *[""] * 5])
                continue
            cold, warm = states["cold"], states["warm"]
            sizes = [warm["import_bytes"], warm["peak_bytes"], cold["peak_bytes"]]
            seconds = [warm["import_seconds"], cold["first_seconds"], warm["first_seconds"]]
            cells = [f"{s:.2f}" for s in seconds] + [f"{size / 1e6:.0f}" for size in sizes]
            lines.append([workload, title, *cells])
    return aligned(lines)


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


def _share(least: float, clock: Mapping[str, float] | None) -> str:
    return f"{100 * least / clock['best']:.0f} %" if least and clock and clock["best"] else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
