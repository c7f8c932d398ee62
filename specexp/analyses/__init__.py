"""Analyses: what is seen in the steps of a run, as tables, pictures and files."""

from specexp.analyses._base import Analysis, Report
from specexp.analyses.ablation_grid import AblationGrid
from specexp.analyses.acceptance_vector import AcceptanceVector
from specexp.analyses.component_times import ComponentTimes
from specexp.analyses.confidence_acceptance import ConfidenceAcceptance
from specexp.analyses.cost_model import CostModel
from specexp.analyses.heat_map import AcceptanceHeatMap
from specexp.analyses.modelled_latency import ModelledLatency
from specexp.analyses.optimal_length import OptimalLength
from specexp.analyses.precut_learning import PrecutLearning
from specexp.analyses.reasoning_table import ReasoningTable
from specexp.analyses.regret import Regret
from specexp.analyses.reuse_potential import ReusePotential
from specexp.analyses.roles import Roles
from specexp.analyses.scaling import Scaling
from specexp.analyses.target_utilisation import TargetUtilisation
from specexp.analyses.time_lines import TimeLines
from specexp.analyses.tokens_per_step import TokensPerStep
from specexp.analyses.tree_reorder import TreeReorder
from specexp.analyses.tree_sizes import TreeSizes
from specexp.analyses.utilisation import Utilisation

__all__ = [
    "AblationGrid",
    "AcceptanceHeatMap",
    "AcceptanceVector",
    "Analysis",
    "ComponentTimes",
    "ConfidenceAcceptance",
    "CostModel",
    "ModelledLatency",
    "OptimalLength",
    "PrecutLearning",
    "ReasoningTable",
    "Regret",
    "Report",
    "ReusePotential",
    "Roles",
    "Scaling",
    "TargetUtilisation",
    "TimeLines",
    "TokensPerStep",
    "TreeReorder",
    "TreeSizes",
    "Utilisation",
]
