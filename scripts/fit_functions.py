"""Fit the coefficients in compiler/targets/llvm, piecewise.py and bell.py, and write their tables.

    .venv-bench/bin/python scripts/fit_functions.py > tables.txt

Needs mpmath, which the benchmark's environment has. The file says what a piece is, and what its
centre and its coefficients are; here is how they are found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mpmath
import numpy as np

mpmath.mp.dps = 40

Function = Callable[[mpmath.mpf], mpmath.mpf]
CLOSE = 0.004
"""How near, in ulp, the value at a centre is to a float32."""
POINTS = 160
"""In how many places of a piece the error is looked at."""
ROUNDS = 30
"""How often the weights are adapted on the way from least squares to the least greatest error."""


@dataclass(frozen=True)
class Fitted:
    """A function to be fitted for 0 ≤ a ≤ limit, cut by 1 + scale·a.

    cuts: into how many pieces a power of two is cut. bends: the first piece is a plus a polynomial.
    end: what the last piece is at the limit, where it must be exact.
    """

    name: str
    function: Function
    scale: float
    degree: int
    limit: float
    cuts: int
    bends: bool = False
    end: float | None = None

    def table(self) -> list[list[float]]:
        """Rows with a number for each piece: centres, the values there, further coefficients."""
        cuts = self.cuts
        rows = [[0.0] * (4 * cuts) for _ in range(self.degree + 2)]
        scale = float(np.float32(self.scale))
        for power in range(4):
            for cut in range(cuts):
                low = (2.0**power * (1 + cut / cuts) - 1) / scale
                high = (2.0**power * (1 + (cut + 1) / cuts) - 1) / scale
                if low <= self.limit:
                    is_last = (power, cut) == (3, cuts - 1)
                    found = self.piece(low, min(high, self.limit + 1e-3), is_last)
                    for row, number in zip(rows, found, strict=True):
                        row[(127 + power & 3) * cuts + cut] = number
        return rows

    def piece(self, low: float, high: float, is_last: bool) -> list[float]:
        """The centre and the coefficients of one piece."""
        if low == 0 and self.bends:
            centre = value = 0.0
        elif is_last and self.end is not None:
            high = centre = float(np.float32(self.limit))
            value = self.end
        else:
            centre, value = self.centre(low, high)
        angles = np.pi * (np.arange(POINTS) + 0.5) / POINTS
        places = (low + high) / 2 + (high - low) / 2 * (1 + 1e-6) * np.cos(angles) - centre
        wanted = [self.function(mpmath.mpf(centre) + mpmath.mpf(float(t))) for t in places]
        rest = np.array([float(each - mpmath.mpf(value)) for each in wanted])
        if low == 0 and self.bends:
            rest = rest - places
        weights = 1 / np.abs(np.array([float(each) for each in wanted]))
        return [centre, value, *self.coefficients(places, rest, weights)]

    def centre(self, low: float, high: float) -> tuple[float, float]:
        """A float32 near the middle at which the value is almost a float32, and that one."""
        middle, reach = (low + high) / 2, (high - low) * 0.12
        places = {float(np.float32(middle + reach * (i / 4000 - 0.5) * 2)) for i in range(4001)}
        best = (np.inf, 0.0, 0.0)
        for place in sorted(places, key=lambda each: abs(each - middle))[:1500]:
            exact = self.function(mpmath.mpf(place))
            near = np.float32(float(exact))
            off = abs(float((exact - mpmath.mpf(float(near))) / float(np.spacing(abs(near)))))
            best = min(best, (off, place, float(near)), key=lambda each: each[0])
            if off < CLOSE:
                break
        return best[1], best[2]

    def coefficients(
        self, places: np.ndarray, rest: np.ndarray, weights: np.ndarray
    ) -> Iterator[float]:
        """One after the other, each rounded before those after it are fitted to what is left."""
        reach = np.max(np.abs(places))
        for power in range(1, self.degree + 1):
            columns = [(places / reach) ** p for p in range(power, self.degree + 1)]
            matrix = np.stack(columns, 1) * weights[:, None]
            stress = np.ones(POINTS)
            for _ in range(ROUNDS):
                system = matrix * stress[:, None], rest * weights * stress
                solution = np.linalg.lstsq(*system, rcond=None)[0]
                errors = np.abs(matrix @ solution - rest * weights)
                if errors.max() > 0:
                    stress = stress * (errors / errors.max() + 1e-3) ** 0.5
                stress /= stress.max()
            found = float(np.float32(solution[0] / reach**power))
            rest = rest - found * places**power
            yield found


def bell_ratio(
    numerator: int = 4, denominator: int = 5, limit: float = 14.35
) -> tuple[list[float], list[float]]:
    """P and Q, the lowest power first, with exp(x²/2)·erfc(x·√½) ≈ P(x)/Q(x) from 0 to a limit.

    Weighted least squares of P - f·Q, the weights adapted towards the least greatest error.
    """
    along = (np.cos(np.pi * (np.arange(400) + 0.5) / 400) + 1) / 2 * limit / (limit + 2)
    places = np.sort(2 * along / (1 - along))  # dense near 0
    exact = (mpmath.mpf(float(x)) for x in places)
    scaled = [mpmath.erfc(x / mpmath.sqrt(2)) * mpmath.exp(x**2 / 2) for x in exact]
    wanted = np.array([float(each) for each in scaled])
    stress, scale = np.ones(400), np.ones(400)
    best = np.inf, np.zeros(0)
    for _ in range(2 * ROUNDS):
        powers = [places**k for k in range(numerator + 1)]
        powers += [-wanted * places**k for k in range(1, denominator + 1)]
        weights = stress / (wanted * scale)
        matrix = np.stack(powers, 1) * weights[:, None]
        sizes = np.abs(matrix).max(0)
        found = np.linalg.lstsq(matrix / sizes, wanted * weights, rcond=None)[0] / sizes
        top = np.polynomial.polynomial.polyval(places, found[: numerator + 1])
        scale = np.polynomial.polynomial.polyval(places, [1.0, *found[numerator + 1 :]])
        errors = np.abs(top / scale / wanted - 1)
        best = min(best, (float(errors.max()), found), key=lambda each: each[0])
        stress = stress * (errors / errors.max() + 1e-3) ** 0.5
        stress /= stress.max()
    return list(best[1][: numerator + 1]), [1.0, *best[1][numerator + 1 :]]


FITTED = [
    Fitted("ERFC", lambda a: mpmath.exp(a * a) * mpmath.erfc(a), 1.48, 8, 10.1, 2),
    Fitted("ERF", mpmath.erf, 3.8, 5, 3.94, 4, bends=True, end=1.0),
    Fitted("TANH", mpmath.tanh, 1.65, 5, 9.05, 4, bends=True, end=1.0),
]


def main() -> None:
    """Write the tables to standard output; `ruff format` folds them."""
    for each in FITTED:
        rows = [", ".join(repr(float(f"{n:.9g}")) for n in row) for row in each.table()]
        lines = [f"{each.name}: Pieces = (", *[f"    ({row})," for row in rows], ")", ""]
        sys.stdout.write("\n".join(lines))
    for name, row in zip(("NUMERATOR", "DENOMINATOR"), bell_ratio(), strict=True):
        sys.stdout.write(f"_{name} = ({', '.join(f'{n:.9g}' for n in row)})\n")


if __name__ == "__main__":
    main()
