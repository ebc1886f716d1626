"""Statistics of several runs and of shares: intervals, and tests of means."""

import math
import statistics
from collections.abc import Sequence


def interval(values: Sequence[float]) -> tuple[float, float, float]:
  """Mean, standard deviation (n - 1) and half the width of the mean's 95 % interval.

  Args:
    values: at least two numbers; the interval is Student's.
  """
  from scipy import stats  # 0.6 s, which only several runs take

  sd = statistics.stdev(values)
  width = stats.t.ppf(0.975, len(values) - 1) * sd / math.sqrt(len(values))
  return statistics.fmean(values), sd, float(width)


def p_value_of_at_most(values: Sequence[float], bound: float) -> float:
  """The p of the one-sided one-sample t-test of "the true mean is at most `bound`".

  It is the probability of a sample mean at least this far above `bound` if the true mean were
  `bound`, so it is small if the true mean is above (KellerJordan/cifar10-airbench: "p<0.0001 for
  the true mean being below 94%"). For identical values it is 0 above the bound, else 1.

  Args:
    values: at least two numbers.
    bound: a number in the unit of the values.
  """
  from scipy import stats

  if statistics.stdev(values) == 0.0:
    return 0.0 if values[0] > bound else 1.0
  return float(stats.ttest_1samp(values, bound, alternative="greater").pvalue)


def p_value_of_equal_means(first: Sequence[float], second: Sequence[float]) -> float:
  """The p of Welch's two-sided t-test of "both samples have the same true mean".

  For two samples without any variance it is 1 where they are equal, else 0.

  Args:
    first, second: at least two numbers each.
  """
  from scipy import stats

  sides = [(statistics.fmean(x), statistics.stdev(x), len(x)) for x in (first, second)]
  if not any(sd for _, sd, _ in sides):
    return float(first[0] == second[0])
  return float(stats.ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False).pvalue)


def interval_of_share(share: float, count: int) -> tuple[float, float]:
  """The 95 % interval of a probability, given the share of `count` draws that it produced.

  Wilson's score interval without continuity correction (Wilson 1927, JASA 22).

  Args:
    share: a fraction.
    count: the number of draws, at least one.
  """
  # By hand: every run prints it, and `scipy.stats` alone would take 0.6 s.
  z = statistics.NormalDist().inv_cdf(0.975)
  centre = (share + z * z / (2 * count)) / (1 + z * z / count)
  inner = share * (1 - share) / count + z * z / (4 * count * count)
  width = z / (1 + z * z / count) * math.sqrt(inner)
  return max(0.0, centre - width), min(1.0, centre + width)
