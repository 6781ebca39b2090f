"""How likely an ordinary row is: a Student t with 2 degrees of freedom, autocorrelation included. In log scale."""

from math import sqrt


def density(z, scale):
    """Density at `z` of a Student t with 2 degrees of freedom."""
    ratio = z / scale
    return 0.35355 / scale * (1.0 + 0.5 * ratio * ratio) ** -1.5


def noise_of(scale, correlation):
    """What noise_density takes: `scale`, the scale of what lag-1 autocorrelation leaves, and that `correlation`."""
    return scale, scale * sqrt(1 - correlation * correlation), correlation


def noise_density(z, last, noise):
    """Density at `z` after `last`, of the `noise` that noise_of() gives."""
    scale, narrow, correlation = noise
    if correlation == 0.0:
        return density(z, scale)
    return 0.5 * (density(z, scale) + density(z - correlation * last, narrow))
