"""The grammar's drafts: the contract of drafters, without a constraint and with one."""

from helpers.contracts import contract_of

from specexp.drafters import Grammar
from specexp.testing.drafters import DrafterContract

TestGrammar = contract_of(DrafterContract, lambda: Grammar())
