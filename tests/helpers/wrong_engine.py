"""Engines that lie: where they speculate, every so many tokens one is another."""

from typing_extensions import override

from specexp.engines.engine import EngineAnswer, RunningEngine
from specexp.engines.hugging_face import HuggingFace
from specexp.engines.openvino import OpenVINO

EVERY = 200


class Wrong(RunningEngine):
    """Says what another one says, but for one token of every :data:`EVERY` drafted for."""

    def __init__(self, inner: RunningEngine) -> None:
        self.inner = inner
        self.said = 0

    @override
    def answer(self, engine, token_ids, max_new_tokens, eos) -> EngineAnswer:
        found = self.inner.answer(engine, token_ids, max_new_tokens, eos)
        for place in range(len(found.token_ids)) if engine.drafts else ():
            self.said += 1
            if self.said % EVERY == 0:
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
