"""How likely an ordinary row is: a Student t with 2 degrees of freedom, autocorrelation included. In log scale."""

from math import sqrt

# Density of the standard one at 0.
_PEAK = 0.35355


def student(scale):
    """The peak and the curvature of a Student t with 2 degrees of freedom: at z its density is p (1 + c z z)^-1.5."""
    return _PEAK / scale, 0.5 / (scale * scale)


def density(z, scale):
    """Density at `z` of a Student t with 2 degrees of freedom."""
    peak, curve = student(scale)
    return peak * (1.0 + curve * z * z) ** -1.5


def noise_density(scale, correlation):
    """The density of a row, as a function of it and the row before, both as distances to their level.

    With autocorrelation a row follows, as often as not, its predecessor; `scale` is that of all rows together.
    """
    peak, curve = student(scale)
    if correlation == 0.0:
        return lambda z, last: peak * (1.0 + curve * z * z) ** -1.5
    narrow_peak, narrow_curve = student(scale * sqrt(1 - correlation * correlation))
    peak, narrow_peak = 0.5 * peak, 0.5 * narrow_peak

    def of(z, last):
        follows = z - correlation * last
        return peak * (1.0 + curve * z * z) ** -1.5 + narrow_peak * (1.0 + narrow_curve * follows * follows) ** -1.5

    return of
