"""Conformance tests: what every part of a family promises, as a class of tests that an implementation inherits.

A part written anywhere, also outside this project, keeps its family's promises if a class like this passes
under pytest; nothing has to be registered::

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
- execution strategy: :class:`specexp.testing.executions.ExecutionContract`, the fixture ``execution``;
  ``DraftingExecutionContract`` for one that uses the drafter
- reasoning task: :class:`specexp.testing.tasks.TaskContract`, the fixture ``task``, ``solution(item)`` and
  ``evaluations()``
- search over thoughts: :class:`specexp.testing.searches.SearchContract`, ``make_search()``
- prompt set: :class:`specexp.testing.prompt_sets.PromptSetContract`, the fixture ``prompt_set``

What to know of them:

- ``make_...()`` gives a *new* part in its initial state, and equal ones at every call: tests of determinism,
  ``reset`` and ``state_dict`` compare two of them.
- A drafter with a vocabulary of its own, or a verifier that needs more logits, sets ``vocab_size``.
- Each class ends with the promise that all others serve: the output is that of plain decoding, token for
  token. It is shown on :mod:`specexp.testing.fakes`, a causal LM whose logits are a function of the tokens a
  row may attend to, so no weights are needed and the tests take seconds.
- A drafter that draws is asked for draws, a builder that draws is given them, and every verifier is shown drawn trees.
- What a part declares (what it learns from, whether seconds matter to it, whether its shape is fixed, how it samples)
  is tested; what it does not declare is taken to be the least favourable, never exact.
- A promise that not every part of a family makes stands in a class of its own; a part that makes it and does not
  inherit that class fails a test that names it.
- What a part does beyond its family (which candidates, which tree) is for its own tests; ``fakes`` and
  :func:`specexp.testing.builders.grow`, which drives a builder by hand, are there for them.

The modules need pytest, which the extra ``dev`` installs; nothing else in specexp imports them.
"""
