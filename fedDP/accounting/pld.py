"""Privacy loss distributions: the tightest account of rounds that were fixed in advance.

The losses of single releases add up, so their distributions are convolved, by multiplying Fourier transforms; equal
releases by a power. Two things keep the sum an upper bound:

* every single loss is rounded pessimistically (`fedDP.accounting.privacy_loss`), on a grid of 1e-4, or of that times a
  power of two where it would need too many points;
* the convolution is done under an exponential weight exp(theta * loss) that moves the bulk of the sum to where delta
  is read off. What the transform rounds, and what the window cuts off, is then small relative to delta itself and is
  added to it, however small delta is and however many releases there are.

No filter: with parameters that depend on earlier outputs, a check of this bound before every round certifies nothing.

Reference:
    Sommer, Meiser, Mohammadi (2019), arXiv:1810.06839 (privacy loss distributions); Koskela, Jälkö, Honkela (2020),
    arXiv:1906.03049 (Fourier accountant); Gopi, Lee, Wutschitz (2021), arXiv:2106.02848, Sec. 5 (truncation by tail
    bounds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedDP.accounting.event import Event, grouped, require_sound
from fedDP.accounting.neighbors import NeighboringRelation
from fedDP.accounting.privacy_loss import Array, DominatingPair, FixedSizePair, LossDistribution

STEP = 1e-4
"""The distance between grid points, unless the losses reach too far for it; that of dp-accounting."""

# Points of one loss, points up to epsilon, and points of a window. The first two decide the step nearly always, and
# they grow with the rate, the rounds and 1 / noise; a step that went to and fro would let epsilon do so too.
_LARGEST_SINGLE = 2**18
_LARGEST_EPSILON = 2**18
_LARGEST_WINDOW = 2**20
# Steps that are tried. A step of many nats rounds every loss up by much of it, so that a coarser one is no way out.
_TRIES = 4
# Probability that a window leaves out, under the exponential weight. It is charged to delta.
_LEFT_OUT = 1e-12
# Nats by which the weight may miss the best Chernoff bound: what is rounded or left out counts exp(this) times as much.
_NEARLY = 3.0
# Rounding of the sums, relative to delta; that of the powers grows with the number of releases.
_ROUNDING = 2.0**-32
_ROUNDING_EACH = 2.0**-49
# Rounding of one release's cumulants: at most 22 squarings, each of which doubles it.
_ROUNDING_SQUARES = 2.0**-28
# The square of exp(_LARGEST_EXPONENT) is no overflow, and that of its inverse still a normal number.
_LARGEST_EXPONENT = 340.0

# Weights to choose from: four an octave where epsilons that mean something lie; one an octave far below, for huge ones,
# and below zero, where only the lower end of a window is looked for.
_LOW, _HIGH = np.arange(-24, -8), np.arange(-8, 15)
_POSITIVE: Array = np.concatenate([2.0**_LOW, 2.0 ** (np.arange(4 * _HIGH[0], 4 * _HIGH[-1] + 4) / 4.0)])
_THETAS: Array = np.concatenate([-(2.0 ** _HIGH[::-1]), -(2.0 ** _LOW[::-1]), [0.0], _POSITIVE])
_ZERO = int(np.flatnonzero(_THETAS == 0.0)[0])
_FIRST_HIGH = _ZERO + 1 + _LOW.size
# Places of weights each of which is twice the one before.
_CHAINS = (
    range(_ZERO + 1, _FIRST_HIGH),
    *(range(_FIRST_HIGH + offset, _THETAS.size, 4) for offset in range(4)),
    range(_ZERO - 1, _ZERO - 1 - _LOW.size, -1),
    range(_ZERO - 1 - _LOW.size, -1, -1),
)

Terms = tuple[tuple[DominatingPair, int], ...]


def pld_epsilon(events: Iterable[Event], delta: float, neighboring_relation: NeighboringRelation) -> float:
    """An epsilon at which the events are (epsilon, delta)-private; never negative, and infinity if there is none.

    Args:
        events: the releases, fixed in advance.
        delta: in (0, 1).
        neighboring_relation: what is hidden.

    Raises:
        UnsupportedError: for an event without a privacy loss under the relation.
    """
    terms = _terms(events, neighboring_relation)
    return math.inf if terms is None else _epsilon(terms, delta)


def pld_delta(events: Iterable[Event], epsilon: float, neighboring_relation: NeighboringRelation) -> float:
    """A delta at which the events are (epsilon, delta)-private; at most 1.

    Args:
        events: the releases, fixed in advance.
        epsilon: >= 0.
        neighboring_relation: what is hidden.

    Raises:
        UnsupportedError: for an event without a privacy loss under the relation.
    """
    terms = _terms(events, neighboring_relation)
    return 1.0 if terms is None else _delta(terms, epsilon)


def _terms(events: Iterable[Event], neighboring_relation: NeighboringRelation) -> Terms | None:
    """The distinct pairs with their counts; everything exactly Gaussian is one pair. None for no privacy at all."""
    counts = grouped(events)
    require_sound((event for event, _ in counts), "pld", neighboring_relation)
    squares, terms = [], []
    for event, count in counts:
        if event.supports("gdp", neighboring_relation):
            squares.append(count * event.squared_mu(neighboring_relation))
        else:
            terms.append((event.dominating_pair(neighboring_relation), count))
    if squares:
        if not all(map(math.isfinite, squares)):
            return None
        terms.append((FixedSizePair(1.0, 1.0 / math.sqrt(math.fsum(squares))), 1))
    return tuple(terms) if all(math.isfinite(pair.reach) for pair, _ in terms) else None


class _Loss(NamedTuple):
    """One direction of a single release's loss, and ln E[exp(theta * loss)] at each of `_THETAS`."""

    distribution: LossDistribution
    cumulants: Array


@lru_cache(maxsize=64)
def _losses(pair: DominatingPair, step: float) -> tuple[_Loss, ...]:
    return tuple(_Loss(loss, _cumulants(loss, step)) for loss in pair.discretise(step))


def _cumulants(loss: LossDistribution, step: float) -> Array:
    """By squaring: exp(theta * loss) at the first weight of a chain gives those of all others."""
    losses = step * (loss.first + np.arange(loss.mass.size))
    result = np.empty(_THETAS.size)
    result[_ZERO] = math.log(loss.mass.sum())
    for indices in _CHAINS:
        mass = loss.mass if indices[0] > _ZERO else loss.mass[::-1]
        end = losses[-1] if indices[0] > _ZERO else losses[0]
        powers = np.exp(-abs(_THETAS[indices[0]]) * step * np.arange(mass.size - 1.0, -1.0, -1.0))
        dropped = 0.0
        for index in indices:
            # What is too small to be a normal number takes the most time; that much is added for it.
            kept = min(powers.size, 1 + int(_LARGEST_EXPONENT / abs(_THETAS[index] * step)))
            if kept < powers.size:
                powers, dropped = powers[-kept:], math.exp(-_LARGEST_EXPONENT)
            moment = float((mass[-kept:] * powers).sum()) + dropped
            result[index] = math.log(moment) + _THETAS[index] * end
            powers = powers * powers
    return result


class _Sum(NamedTuple):
    """The summed loss near where delta is read off, under its exponential weight.

    Attributes:
        epsilon: the loss that everything is relative to.
        log_scale: ln of what `mass` must be multiplied by to give probabilities at `epsilon`.
        first: the multiple of the step that the first mass belongs to.
        theta: the weight; mass at a loss stands for mass * exp(log_scale - theta * (loss - epsilon)).
        mass: shape (window,).
        infinite: the mass without any bound on the loss, a plain probability.
        cut: mass beyond the window, in units of exp(log_scale).
    """

    epsilon: float
    log_scale: float
    first: int
    theta: float
    mass: Array
    infinite: float
    cut: float


@lru_cache(maxsize=4096)
def _epsilon(terms: Terms, delta: float) -> float:
    log_delta = math.log(delta)
    # Where delta is read off is not known yet: start at the Chernoff bound, which is not far above.
    found = _sums(terms, lambda cumulants: float(np.min((cumulants[_ZERO + 1 :] - log_delta) / _POSITIVE)))
    if found is None:
        return math.inf
    step, sums = found
    return max((_solve(each, step, delta) for each in sums), default=0.0)


@lru_cache(maxsize=4096)
def _delta(terms: Terms, epsilon: float) -> float:
    found = _sums(terms, lambda _: epsilon)
    if found is None:
        return 1.0
    step, sums = found
    return min(1.0, max((_read(each, step) for each in sums), default=0.0))


def _sums(terms: Terms, around: Callable[[Array], float]) -> tuple[float, list[_Sum]] | None:
    """The step, and the summed loss of (P, Q) and of (Q, P), each near the epsilon that `around` its cumulants says.

    None where no grid is both coarse enough to fit and fine enough to say anything, which takes hundreds of thousands
    of releases with hardly any noise.
    """
    step = STEP * _doublings(max((pair.reach for pair, _ in terms), default=STEP) / STEP, _LARGEST_SINGLE)
    for _ in range(_TRIES):
        per_term = [(_losses(pair, step), count) for pair, count in terms]
        directions = range(max((len(losses) for losses, _ in per_term), default=0))
        each = [[(losses[min(way, len(losses) - 1)], count) for losses, count in per_term] for way in directions]
        windows = [_window(losses, around, step) for losses in each]
        farthest = max((window.epsilon for window in windows), default=step)
        widest = max((window.last - window.first for window in windows), default=0)
        merged = max(_doublings(farthest / step, _LARGEST_EPSILON), _doublings(widest + 1, _LARGEST_WINDOW))
        if merged == 1.0:
            return step, [_convolved(*both, step) for both in zip(each, windows, strict=True)]
        step *= merged
    return None


def _doublings(cells: float, largest: int) -> float:
    """The smallest power of two by which so many cells must be merged."""
    return float(2.0 ** max(0, math.ceil(math.log2(max(cells, 1.0) / largest))))


class _Window(NamedTuple):
    """Where the summed loss is needed: the epsilon, the weight, and the grid points between which its bulk lies."""

    epsilon: float
    theta: float
    first: int
    last: int


def _window(each: list[tuple[_Loss, int]], around: Callable[[Array], float], step: float) -> _Window:
    """Chooses the weight; at most `_LEFT_OUT` is beyond either end, by Chernoff bounds at the other weights."""
    cumulants = np.sum([count * loss.cumulants for loss, count in each], axis=0)
    epsilon = around(cumulants)
    bounds = cumulants[_ZERO:] - _THETAS[_ZERO:] * epsilon
    # The lightest weight that is nearly the best one: the less weight on rare large losses, the smaller the window.
    chosen = _ZERO + int(np.argmax(bounds <= bounds.min() + _NEARLY))
    others = np.flatnonzero(np.isfinite(cumulants) & (np.arange(_THETAS.size) != chosen))
    rounding = sum(count for _, count in each) * _ROUNDING_SQUARES
    exponents = cumulants[chosen] - cumulants[others] + math.log(_LEFT_OUT) - rounding
    ends = exponents / (_THETAS[chosen] - _THETAS[others])
    lowest = sum(count * loss.distribution.first for loss, count in each)
    highest = lowest + sum(count * (loss.distribution.mass.size - 1) for loss, count in each)
    from_below = max(lowest * step, np.max(ends[others < chosen], initial=-np.inf))
    from_above = min(highest * step, np.min(ends[others > chosen], initial=np.inf))
    first, last = max(lowest, math.floor(from_below / step) - 1), min(highest, math.ceil(from_above / step) + 1)
    return _Window(epsilon, float(_THETAS[chosen]), first, max(first, last))


def _convolved(each: list[tuple[_Loss, int]], window: _Window, step: float) -> _Sum:
    from scipy.fft import irfft, next_fast_len, rfft

    length = next_fast_len(window.last - window.first + 1, real=True)
    spectrum: NDArray[np.complex128] | None = None
    log_moment, log_finite = 0.0, 0.0
    for loss, count in each:
        distribution = loss.distribution
        exponents = window.theta * step * (distribution.first + np.arange(distribution.mass.size))
        peak = float(exponents.max())
        weighted = distribution.mass * np.exp(exponents - peak)
        total = float(weighted.sum())
        factor = _power(rfft(_wrapped(weighted / total, distribution.first, length)), count)
        spectrum = factor if spectrum is None else spectrum * factor
        log_moment += count * (peak + math.log(total))
        log_finite += count * math.log1p(-distribution.infinite)
    mass = np.roll(irfft(spectrum, length), -(window.first % length))
    mass = np.maximum(mass, 0.0) + max(0.0, -float(mass.min()))  # what is negative shows how far rounding went
    rounding = _ROUNDING + _ROUNDING_EACH * (sum(count for _, count in each) + abs(log_moment))
    return _Sum(
        epsilon=window.epsilon,
        log_scale=log_moment - window.theta * window.epsilon,
        first=window.first,
        theta=window.theta,
        mass=mass * (1.0 + rounding),
        infinite=-math.expm1(log_finite),
        cut=_LEFT_OUT * math.exp(-window.theta * max(0.0, window.last * step - window.epsilon)),
    )


def _wrapped(mass: Array, first: int, length: int) -> Array:
    """The masses at their grid points modulo `length`."""
    padded = np.zeros(-(-mass.size // length) * length)
    padded[: mass.size] = mass
    return np.roll(padded.reshape(-1, length).sum(axis=0), first % length)


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """By repeated squaring: a dozen multiplications instead of logarithms of complex numbers."""
    result: NDArray[np.complex128] | None = None
    while True:
        if exponent % 2:
            result = base if result is None else result * base
        exponent //= 2
        if not exponent:
            return base if result is None else result
        base = base * base


def _tails(found: _Sum, step: float) -> tuple[int, Array, Array]:
    """For each grid point from the returned one: what P, and what Q * exp(loss of the point), have from there on."""
    from scipy.signal import lfilter

    lowest = 0 if found.theta == 0.0 else math.ceil((found.epsilon - _LARGEST_EXPONENT / found.theta) / step)
    skipped = max(0, max(0, lowest) - found.first)
    kept = found.mass[skipped:]
    losses = step * (found.first + skipped + np.arange(kept.size))
    mass = (kept * np.exp(-found.theta * (losses - found.epsilon)))[::-1]
    upper = np.cumsum(mass)[::-1]
    lower = lfilter([1.0], [1.0, -math.exp(-step)], mass)[::-1]
    return found.first + skipped, upper, lower


def _solve(found: _Sum, step: float, delta: float) -> float:
    """The smallest epsilon at which delta is met, among the losses in the window."""
    if delta <= found.infinite:
        return math.inf
    target = math.exp(math.log(delta - found.infinite) - found.log_scale) - found.cut
    if target <= 0.0:
        return math.inf
    first, upper, lower = _tails(found, step)
    if not upper.size:
        return max(0.0, step * found.first)
    index = int(np.argmax(upper - lower <= target))
    at = step * (first + index)
    if index == 0:
        return max(0.0, at)
    return max(0.0, min(at, max(at - step, at + math.log((upper[index] - target) / lower[index]))))


def _read(found: _Sum, step: float) -> float:
    """Delta at the epsilon of the sum."""
    first, upper, lower = _tails(found, step)
    index = max(0, math.ceil(found.epsilon / step) - first)
    reached = 0.0
    if index < upper.size:
        reached = float(upper[index] - math.exp(found.epsilon - step * (first + index)) * lower[index])
    outside = found.cut + (_LEFT_OUT if found.epsilon < step * first else 0.0)
    return found.infinite + math.exp(min(0.0, found.log_scale)) * (reached + outside)
