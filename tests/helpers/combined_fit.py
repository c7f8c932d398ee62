"""Several samples of one law judged together."""

from collections.abc import Sequence

from scipy import stats

from specexp.verify.statistics import GoodnessOfFit


def combined_p_value(fits: Sequence[GoodnessOfFit]) -> float:
    """One p-value for several independent samples: the sum of their chi-squares; 0 if one hit an impossible cell."""
    if any(fit.impossible for fit in fits):
        return 0.0
    degrees = sum(fit.degrees for fit in fits)
    return 1.0 if degrees == 0 else float(stats.chi2.sf(sum(fit.chi_square for fit in fits), degrees))
