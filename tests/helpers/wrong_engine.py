"""Engines with a planted bug: where they speculate, one of every 200 tokens is wrong."""

from typing_extensions import override

from specexp.engines.engine import EngineAnswer, RunningEngine
from specexp.engines.hugging_face import HuggingFace
from specexp.engines.openvino import OpenVINO

EVERY = 200


class Wrong(RunningEngine):
    """Returns another engine's answers with every :data:`EVERY`-th token of a drafting arm changed."""

    def __init__(self, inner: RunningEngine) -> None:
        self.inner = inner
        self.tokens = 0

    @override
    def answer(self, engine, token_ids, max_new_tokens, eos) -> EngineAnswer:
        found = self.inner.answer(engine, token_ids, max_new_tokens, eos)
        for place in range(len(found.token_ids)) if engine.drafts else ():
            self.tokens += 1
            if self.tokens % EVERY == 0:
                found.token_ids[place] = found.token_ids[place] - 1 or 2
        return found

    @override
    def close(self) -> None:
        self.inner.close()


class WrongHuggingFace(HuggingFace):
    @override
    def start(self, pair):
        return Wrong(super().start(pair))


class WrongOpenVINO(OpenVINO):
    @override
    def start(self, pair):
        return Wrong(super().start(pair))


class GoesOn(Wrong):
    """Returns tokens after the one that ends an answer."""

    @override
    def answer(self, engine, token_ids, max_new_tokens, eos) -> EngineAnswer:
        found = self.inner.answer(engine, token_ids, max_new_tokens, eos)
        found.token_ids[:] = [*found.token_ids[:3], min(eos, default=0), *found.token_ids[:2]]
        return found


class HuggingFaceThatGoesOn(HuggingFace):
    @override
    def start(self, pair):
        return GoesOn(super().start(pair))
