"""Is a composition lossless? Tests of its outputs' law where every probability is known, and on real models."""

from specexp.verify.joint import JointTest, joint_test
from specexp.verify.statistics import Fit, combined_p_value, goodness_of_fit, two_sample_p_value

__all__ = ["Fit", "JointTest", "combined_p_value", "goodness_of_fit", "joint_test", "two_sample_p_value"]
