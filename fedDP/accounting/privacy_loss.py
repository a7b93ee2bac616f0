"""The privacy loss of one release, on a grid, rounded so that no guarantee gets better by it.

A release is stood for by a pair of distributions (P, Q) that is at least as easy to tell apart as its outputs on any
two neighbouring data sets. The loss ln(P / Q) falls into cells between neighbouring multiples of a step. The mass of
a cell is split between its two ends so that P's and Q's shares are both kept: among the distributions on the grid that
dominate the pair, this is the closest one, and it composes. All masses are sums of integrals of the normal density,
taken on the side where nothing cancels.

Reference:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), arXiv:2207.04380, Alg. 1 (connect the dots); Zhu, Dong, Wang
    (2022), arXiv:2106.08567, Thm. 10 (dominating pairs compose) and Prop. 30 (Poisson); Balle, Barthe, Gaboardi
    (2018), arXiv:1807.01647, Thm. 9 and 10 (cohorts without replacement).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Mass beyond this many standard deviations counts as infinite loss: 8e-24 a release.
_TAIL = 10.0
# The rounding of one integral of the normal density, relative to the tail it is taken from: its own, and that of edges
# up to ten standard deviations out. Edges of two distributions that are further apart than 8 agree less well.
_ROUNDING = 2.0**-46
# Smaller noise overflows 1 / z**2.
_TINY_NOISE = 1e-150
_SQRT_HALF = math.sqrt(0.5)


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """What P puts on each multiple of the step, and on infinity.

    Attributes:
        first: the multiple of the step that the first mass belongs to.
        mass: one a grid point, none negative.
        infinite: the mass without any bound on the loss.
    """

    first: int
    mass: Array
    infinite: float


class DominatingPair(Protocol):
    """A hashable pair of distributions; equal pairs have equal losses."""

    def __hash__(self) -> int: ...

    @property
    def reach(self) -> float:
        """The width of the range of losses that matter; decides how fine the grid can be. Infinity: no privacy."""

    def discretise(self, step: float) -> tuple[LossDistribution, ...]:
        """The loss on multiples of `step`: of (P, Q), and of (Q, P) where that is another one."""


@dataclass(frozen=True)
class PoissonPair:
    """One client absent: (1 - q) N(0, z**2) + q N(1, z**2) where it takes part with probability q, against N(0, z**2).

    Args:
        rate: q, in (0, 1).
        noise: z, in units of how far the client moves the sum.
    """

    rate: float
    noise: float

    @property
    def reach(self) -> float:
        """From the loss at ten standard deviations below N(0, z**2) to the loss at ten above N(1, z**2)."""
        return _top_loss(self.rate, self.noise) - self._bottom

    @property
    def _bottom(self) -> float:
        log_ratio = -(0.5 / self.noise + _TAIL) / self.noise
        return float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + log_ratio))

    def discretise(self, step: float) -> tuple[LossDistribution, ...]:
        """The loss of taking part; and of being absent: the same one, negated, under the other distribution."""
        # Clearly below ln(1 - q), near which a rounded loss would belong to an edge far from where it should be.
        first = math.floor(self._bottom / step - 1e-6)
        last = math.ceil(_top_loss(self.rate, self.noise) / step)
        cells = _poisson_cells(self.rate, self.noise, step, first, last)
        share = -math.expm1(-step)
        taking_part = _split(cells.mass, (cells.excess + cells.error) / share)
        taking_part[0] += cells.below
        weight = np.exp(-step * np.arange(first + 1, last + 1)) / share
        absent = _split(cells.other_mass, (cells.excess - cells.error) * weight)
        absent[-1] += cells.other_above
        return (
            LossDistribution(first, taking_part, cells.above),
            LossDistribution(-last, absent[::-1], cells.other_below),
        )


@dataclass(frozen=True)
class FixedSizePair:
    """One client swapped, in a cohort drawn without replacement that it is in with probability `rate`.

    Its delta at any epsilon' = ln(1 + q (exp(epsilon) - 1)) >= 0 is q times delta of the Gaussian at epsilon; below
    zero it follows from the symmetry of swapping. At a rate of 1 it is the Gaussian mechanism itself.

    Args:
        rate: q, in (0, 1].
        noise: z, in units of how far the swap moves the sum.
    """

    rate: float
    noise: float

    @property
    def reach(self) -> float:
        """Twice the loss at ten standard deviations."""
        return 2.0 * _top_loss(self.rate, self.noise)

    def discretise(self, step: float) -> tuple[LossDistribution, ...]:
        """The loss of the swap; swapping back has the same."""
        last = math.ceil(_top_loss(self.rate, self.noise) / step)
        cells = _poisson_cells(self.rate, self.noise, step, 0, last)
        return (_symmetric(_split(cells.mass, (cells.excess + cells.error) / -math.expm1(-step)), cells.above, step),)


@dataclass(frozen=True)
class PoissonReplacedPair:
    """One client swapped: N(0, z**2) mixed with N(1, z**2) where it takes part with probability q, or with N(-1, z**2).

    Args:
        rate: q, in (0, 1).
        noise: z, the noise multiplier; the swap moves the sum by 2.
    """

    rate: float
    noise: float

    @property
    def reach(self) -> float:
        """Twice the loss at ten standard deviations."""
        return 2.0 * self._top

    @property
    def _top(self) -> float:
        top = _top_loss(self.rate, self.noise)
        if math.isinf(top):
            return top
        log_ratio = -(1.5 + _TAIL * self.noise) / (self.noise * self.noise)  # of N(-1, z**2) and N(0, z**2) there
        return top - float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + log_ratio))

    def discretise(self, step: float) -> tuple[LossDistribution, ...]:
        """The loss of the swap; swapping back has the same."""
        q, z = self.rate, self.noise
        shift = 1.0 / z
        losses = step * np.arange(math.ceil(self._top / step) + 1)
        # x = z**2 (asinh(sinh(loss / 2) a) + loss / 2) with a = exp(1 / (2 z**2)) (1 - q) / q
        with np.errstate(divide="ignore"):
            log_sinh = losses / 2.0 + np.log(-np.expm1(-losses)) - math.log(2.0)
            log_rise = losses + np.log(-np.expm1(-losses))  # exp(loss) - 1
        log_scaled = log_sinh + shift * shift / 2.0 + math.log1p(-q) - math.log(q)
        t = z * (_asinh_exp(log_scaled) + losses / 2.0)
        near, middle, far = t - shift, t, t + shift
        near_mass, near_tail = _between(near)
        middle_mass, _ = _between(middle)
        middle_other, middle_tail = _between(middle, log_rise[:-1] - middle[:-1] * middle[:-1] / 2.0)
        far_other, far_tail = _between(far, losses[:-1] - far[:-1] * far[:-1] / 2.0)
        excess = q * near_mass - (1.0 - q) * middle_other - q * far_other
        error = _rounding(z) * (q * near_tail + (1.0 - q) * middle_tail + q * far_tail)
        mass = _split((1.0 - q) * middle_mass + q * near_mass, (excess + error) / -math.expm1(-step))
        return (_symmetric(mass, (1.0 - q) * _upper(middle[-1]) + q * _upper(near[-1]), step),)


class _Cells(NamedTuple):
    """A mixture (1 - q) N(0, z**2) + q N(1, z**2) against N(0, z**2), by cells of the loss.

    Attributes:
        mass, other_mass: what the mixture and N(0, z**2) have in each cell.
        excess: that, minus exp(loss at the cell's left end) times the other's mass, without cancellation.
        error: how far `excess` may be off.
        below, above: what the mixture has below the first cell, and above the last one.
        other_below, other_above: what N(0, z**2) has there.
    """

    mass: Array
    other_mass: Array
    excess: Array
    error: Array
    below: float
    above: float
    other_below: float
    other_above: float


def _poisson_cells(rate: float, noise: float, step: float, first: int, last: int) -> _Cells:
    """The cells between the grid points first..last."""
    shift = 1.0 / noise
    losses: Array = step * np.arange(first, last + 1, dtype=np.float64)
    log_ratio = _log_ratio(losses, rate)
    middle = log_ratio * noise + shift / 2.0
    near = middle - shift
    near_mass, near_tail = _between(near)
    middle_mass, _ = _between(middle)
    # Where exp(loss) = 1 - q + q exp(log_ratio), the excess is q * (near - exp(log_ratio) * middle).
    other, other_tail = _between(middle, -near[:-1] * near[:-1] / 2.0)
    never = np.isneginf(log_ratio[:-1])
    other = np.where(never, middle_mass * (np.expm1(np.where(never, losses[:-1], 0.0)) + rate) / rate, other)
    return _Cells(
        mass=(1.0 - rate) * middle_mass + rate * near_mass,
        other_mass=middle_mass,
        excess=rate * (near_mass - other),
        error=_rounding(noise) * rate * (near_tail + np.where(never, 0.0, other_tail)),
        below=(1.0 - rate) * _upper(-middle[0]) + rate * _upper(-near[0]),
        above=(1.0 - rate) * _upper(middle[-1]) + rate * _upper(near[-1]),
        other_below=_upper(-middle[0]),
        other_above=_upper(middle[-1]),
    )


def _split(mass: Array, right: Array) -> Array:
    """Moves each cell's mass to its ends, so much of it to the right one."""
    right = np.clip(right, 0.0, mass)
    points = np.append(mass - right, 0.0)
    points[1:] += right
    return points


def _symmetric(mass: Array, infinite: float, step: float) -> LossDistribution:
    """The loss that looks the same both ways round, from its masses at 0 (which is ignored), step, 2 * step, ..."""
    positive = mass[1:]
    negative = positive * np.exp(-step * np.arange(1, positive.size + 1))
    zero = max(0.0, 1.0 - float(positive.sum()) - float(negative.sum()) - infinite)
    return LossDistribution(-positive.size, np.concatenate([negative[::-1], [zero], positive]), infinite)


def _rounding(noise: float) -> float:
    return _ROUNDING * max(1.0, 1.0 / (8.0 * noise))


def _top_loss(rate: float, noise: float) -> float:
    """The loss of the mixture against N(0, z**2) where N(1, z**2) ends."""
    if noise < _TINY_NOISE:
        return math.inf
    log_ratio = 1.0 / (2.0 * noise * noise) + _TAIL / noise
    if rate == 1.0:
        return log_ratio
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + log_ratio))


def _log_ratio(losses: Array, rate: float) -> Array:
    """ln of N(1, z**2) / N(0, z**2) where the mixture's loss is `losses`; minus infinity where it is never that low."""
    large = losses > 30.0
    with np.errstate(divide="ignore", over="ignore"):
        small = np.log1p(np.maximum(np.expm1(np.where(large, 0.0, losses)) / rate, -1.0))
    if not large.any():
        return small
    return np.where(large, losses - math.log(rate) + np.log1p(-(1.0 - rate) * np.exp(-np.maximum(losses, 30.0))), small)


def _asinh_exp(exponent: Array) -> Array:
    """asinh(exp(exponent))."""
    positive = np.maximum(exponent, 0.0)
    large = positive + np.log1p(np.sqrt(1.0 + np.exp(-2.0 * positive)))
    return np.where(exponent > 0.0, large, np.arcsinh(np.exp(np.minimum(exponent, 0.0))))


def _between(edges: Array, exponent: Array | None = None) -> tuple[Array, Array]:
    """The standard normal mass between neighbouring edges, and the tail that each is a part of.

    Args:
        edges: ascending; infinities allowed.
        exponent: where given, one a cell: the mass is multiplied by exp(exponent + left edge**2 / 2), and nothing in
            between overflows.
    """
    from scipy.special import erfcx, ndtr

    left, right = edges[:-1], edges[1:]
    is_upper = left > 0.0
    start, end = np.where(is_upper, left, 0.0), np.where(is_upper, right, 0.0)
    scale = np.exp(-start * start / 2.0 if exponent is None else np.where(is_upper, exponent, 0.0)) / 2.0
    fall = np.exp(-(end - start) * (end + start) / 2.0)
    tail = scale * erfcx(start * _SQRT_HALF)
    mass = tail - scale * fall * erfcx(end * _SQRT_HALF)
    lower = np.asarray(ndtr(right), dtype=np.float64)
    below = lower - ndtr(left)
    if exponent is not None:
        with np.errstate(invalid="ignore", over="ignore"):  # at the left end of the line, which holds no mass
            factor = np.exp(np.where(is_upper, -np.inf, exponent + left * left / 2.0))
        lower, below = (np.where(below > 0.0, part * factor, 0.0) for part in (lower, below))
    return np.where(is_upper, mass, below), np.where(is_upper, tail, lower)


def _upper(edge: float) -> float:
    """The standard normal mass above an edge."""
    return math.erfc(edge * _SQRT_HALF) / 2.0
