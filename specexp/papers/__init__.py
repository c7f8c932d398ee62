"""Analyses: what is seen in the steps of a run, as tables, pictures and files."""

from specexp.bench.analysis import Analysis
from specexp.bench.publish import Report
from specexp.papers.ablation_grid import AblationGrid
from specexp.papers.acceptance_vector import AcceptanceVector
from specexp.papers.component_times import ComponentTimes
from specexp.papers.confidence_acceptance import ConfidenceAcceptance
from specexp.papers.cost_model import CostModel
from specexp.papers.heat_map import AcceptanceHeatMap
from specexp.papers.modelled_latency import ModelledLatency
from specexp.papers.optimal_length import OptimalLength
from specexp.papers.precut_learning import PrecutLearning
from specexp.papers.reasoning_table import ReasoningTable
from specexp.papers.regret import Regret
from specexp.papers.reuse_potential import ReusePotential
from specexp.papers.roles import Roles
from specexp.papers.scaling import Scaling
from specexp.papers.target_utilisation import TargetUtilisation
from specexp.papers.time_lines import TimeLines
from specexp.papers.tokens_per_step import TokensPerStep
from specexp.papers.tree_reorder import TreeReorder
from specexp.papers.tree_sizes import TreeSizes
from specexp.papers.utilisation import Utilisation

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
