"""Every analysis of the papers keeps the contract of analyses; regret, storage and published rows by hand."""

from functools import partial

import pytest
from helpers.analysis_contract import AnalysisContract
from helpers.contracts import contract_of
from helpers.made_records import record

from experiments.by_task import FastestByTask
from experiments.papers.dyspec.block_attention import TreeReorder
from experiments.papers.dyspec.trees import AcceptanceHeatMap, AcceptanceVector, TreeSizes
from experiments.papers.oracle import Oracle
from experiments.papers.post_use_pre_cut.acceptance import ConfidenceAcceptance, PrecutLearning, Utilisation
from experiments.papers.post_use_pre_cut.draft_length import AblationGrid, OptimalLength
from experiments.papers.post_use_pre_cut.reuse_potential import ReusePotential
from experiments.papers.regret import Regret
from experiments.papers.same_drafts import SameDrafts
from experiments.papers.seed.speedups import ReasoningTable, Roles
from experiments.papers.seed.time_lines import TimeLines
from experiments.papers.shared import add_rows, check_rows
from experiments.papers.token_recycling.storage import Storage
from specexp.builders import Chain, KConfig
from specexp.controllers import Fixed
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.report.table import Table, columns
from specexp.testing.fakes import hashed_model
from specexp.verifiers import Greedy, RejectionSampling

contract = partial(contract_of, AnalysisContract)
THEIRS = {
    "grid": {"level": "theirs", "speedups": {3: 2.29, 6: 2.67}},
    "utilisation": {"method": "Llama 2", "accepted": 5.72, "utilisation": 0.475},
    "reasoning": {"task": "GSM8K", "method": "SEED, (1,1,1)", "speedup": 1.13, "depth": 3},
    "roles": {"role": "judge", "method": "x"},
}
TestAcceptanceVector = contract(lambda: AcceptanceVector(width=3))
TestAcceptanceHeatMap = contract(AcceptanceHeatMap)
TestTreeSizes = contract(TreeSizes)
TestAblationGrid = contract(lambda: AblationGrid(published=[THEIRS["grid"]]))
TestOptimalLength = contract(OptimalLength)
TestConfidenceAcceptance = contract(ConfidenceAcceptance)
TestPrecutLearning = contract(PrecutLearning)
TestUtilisation = contract(lambda: Utilisation([THEIRS["utilisation"], {"method": "other"}]))
TestReusePotential = contract(ReusePotential)
TestReasoningTable = contract(lambda: ReasoningTable(published=[THEIRS["reasoning"]]))
TestRoles = contract(lambda: Roles(published=[THEIRS["roles"]]))
TestTimeLines = contract(TimeLines)
TestRegret = contract(Regret)
TestStorage = contract(Storage)
TestSameDrafts = contract(lambda: SameDrafts(repetitions=2))
TestFastestByTask = contract(FastestByTask)


class TestTreeReorder(AnalysisContract):
    def make_analysis(self):
        analysis = TreeReorder()
        analysis.prefixes = (0, 2, 4)
        return analysis


SECONDS = {"oracle": (1.0, 2.0), "learned": (1.1, 2.2), "fixed": (1.5, 3.0), "plain": (3.0, 6.0)}
RECORDS = [record(arm, prompt, SECONDS[arm][prompt]) for prompt in range(2) for arm in SECONDS]


def regrets(table, **given):
    """The rows of a table of :class:`Regret` by arm."""
    draft, plain = DraftModel(hashed_model(5)), Parts(None, None, Greedy(), Fixed())
    drafting = Parts(draft, Chain(4), Greedy(), Fixed())
    analysis = Regret(**given)
    oracle = drafting._replace(controller=Oracle())
    analysis.begin({"plain": plain, "oracle": oracle, "learned": drafting, "fixed": drafting})
    return {row["arm"]: row for row in analysis.report(RECORDS).tables[table].records()}


def test_regret_is_the_time_per_token_over_the_oracles():
    rows = regrets("regret")
    assert rows["learned"]["regret"] == "1.10x [1.10, 1.10]"
    assert rows["fixed"]["regret"] == "1.50x [1.50, 1.50]"
    assert rows["oracle (the oracle)"]["regret"] is None


def test_chosen_arms_are_compared_in_pairs():
    """1.5 / 1.1 = 1.36 whichever arm the oracle is; the oracle itself is in no pair."""
    rows = regrets("regret_pairs", compare=["learned", "fixed"])
    assert rows["fixed"]["over learned"] == "1.36x [1.36, 1.36]"
    assert rows["learned"]["over fixed"] == "0.73x [0.73, 0.73]"
    assert rows["learned"]["over learned"] is None
    assert list(rows) == ["learned", "fixed"]


def test_an_arm_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"compare must name one of the arms .*, got 'none'"):
        regrets("regret", compare=["learned", "none"])


def test_the_matrix_of_4096_tokens_and_8_candidates_takes_131_kb_and_a_mb_at_32000():
    recycling = TokenRecycling(k=8, state="carry")
    recycling.check_vocabulary(4096)
    analysis = Storage()
    parts = Parts(recycling, Chain(2), Greedy(), Fixed())
    analysis.begin({"recycling": parts, "lookup": parts._replace(drafter=PromptLookup())})
    own, lookup = analysis.report([]).tables["storage"].records()
    assert (own["shapes"], own["kB"]) == ("[4096, 8] int32", 4096 * 8 * 4 / 1e3)
    assert own["kB at 32,000 tokens"] == 1024
    assert (lookup["shapes"], lookup["kB"]) == ("nothing", 0)


KEYS = ["speedup", "by length", "share"]
ROWS = [{"method": "theirs", "speedup": 2.0, "share": 0.5}, {"method": "others"}]


def test_published_rows_are_below_their_headings_and_missing_figures_are_empty():
    table = Table("Arms", columns("arm | busy:.1% | gain:interval"))
    add_rows(table, check_rows(ROWS, KEYS), {"speedup": "gain", "share": "busy"})
    assert table.shown() == [
        ["theirs (not run here)", "50.0 %", "2.00x published"],
        ["others (not run here)", "-", "-"],
    ]
    assert check_rows(None, ["speedup"]) == []


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"speedup": 2.0}, "published.1.method must be a text"),
        ({"method": 3}, "published.1.method must be a text"),
        ({"method": "x", "speed": 2.0}, "published.1: unknown key 'speed'; did you mean 'speedup'?"),
        ({"method": "x", "speedup": 0}, "published.1.speedup must be a number above 0, got 0"),
        ({"method": "x", "speedup": True}, "published.1.speedup must be a number above 0, got True"),
        ({"method": "x", "by length": {4: "fast"}}, "published.1.by length must be a number above 0, got 'fast'"),
    ],
)
def test_a_mistake_of_a_published_row_names_its_row_and_key(row, sentence):
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        check_rows([ROWS[0], row], KEYS)


@pytest.mark.parametrize(("builder", "verifiers"), [(Chain(3, "drawn"), 3), (KConfig([2, 1], "drawn"), 2)])
def test_verifiers_of_a_perfect_draft_accept_all_of_the_same_drafts(builder, verifiers):
    """The draft is the target, so each step has a whole path and a bonus token. Block verification is of chains."""
    analysis, model = SameDrafts(repetitions=2), hashed_model(13)
    parts = Parts(DraftModel(hashed_model(13)), builder, RejectionSampling())
    analysis.begin({"arm": parts})
    for sequence in range(2):
        watching = {"sequence": sequence, "observers": [partial(analysis.observe, "arm")]}
        Decoder(model, *parts).generate([1, 2], max_new_tokens=24, seed=0, **watching)
    rows = analysis.report([]).tables["same_drafts"].records()
    assert len(rows) == verifiers
    assert {row["over rejection sampling"] for row in rows} == {1.0}
