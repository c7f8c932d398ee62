"""Conformance tests: one test class per family of parts, from which the tests of an implementation inherit.

A part, also one outside this project, meets its family's contract if a class like this passes under pytest. It need not
be registered::

    from my_package import RepeatLast
    from specexp.testing.drafters import DrafterContract

    class TestRepeatLast(DrafterContract):
        def make_drafter(self):
            return RepeatLast()

- drafter: :class:`specexp.testing.drafters.DrafterContract`, ``make_drafter()``; ``DrawingDrafterContract`` for one
  that draws, ``PhraseDrafterContract`` for one with phrases
- tree builder: :class:`specexp.testing.builders.TreeBuilderContract`, ``make_builder()``;
  ``DrawingTreeBuilderContract`` for one that draws
- verifier: :class:`specexp.testing.verifiers.VerifierContract`, ``make_verifier()``; ``LosslessVerifierContract`` and
  ``DeterministicVerifierContract`` for one that declares it
- controller: :class:`specexp.testing.controllers.ControllerContract`, ``make_controller()``;
  ``FrozenControllerContract`` for one that does not learn
- analysis: :class:`specexp.testing.analyses.AnalysisContract`, ``make_analysis()``
- runtime: :class:`specexp.testing.runtimes.RuntimeContract`, ``runtime()``
- execution strategy: :class:`specexp.testing.executions.ExecutionContract`, the fixture ``execution``;
  ``DraftingExecutionContract`` for one that uses the drafter
- reasoning task: :class:`specexp.testing.tasks.TaskContract`, the fixture ``task``, ``solution(item)`` and
  ``evaluations()``
- search over thoughts: :class:`specexp.testing.searches.SearchContract`, ``make_search()``
- prompt set: :class:`specexp.testing.prompt_sets.PromptSetContract`, the fixture ``prompt_set``

``make_...()`` returns a *new* part in its initial state, equal at every call. A part's declarations are tested, for
example of what it learns from or how it samples; the defaults are the least favourable values. A part with an
additional ability must inherit the class that tests it, and otherwise fails a test that names this class. The last test
of each family of decoding parts checks that the output equals plain decoding's, on :mod:`specexp.testing.fakes` (models
without weights). Candidates and trees are checked by a part's own tests, with ``fakes`` and
:func:`specexp.testing.builders.grow`.

The modules need pytest, which the extra ``dev`` installs; no other module of specexp imports them.
"""
