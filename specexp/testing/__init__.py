"""Conformance tests: one base class per family of parts, from which an implementation's tests inherit.

A part from any project meets its family's contract if a class like this passes under pytest. The part need not be
registered::

    from my_package import RepeatLast
    from specexp.testing.drafters import DrafterContract

    class TestRepeatLast(DrafterContract):
        def make_drafter(self):
            return RepeatLast()

- drafter: :class:`specexp.testing.drafters.DrafterContract`, ``make_drafter()``; ``DrawingDrafterContract`` if it
  draws, ``PhraseDrafterContract`` if it proposes phrases
- tree builder: :class:`specexp.testing.builders.TreeBuilderContract`, ``make_builder()``;
  ``DrawingTreeBuilderContract`` if it draws
- verifier: :class:`specexp.testing.verifiers.VerifierContract`, ``make_verifier()``; ``LosslessVerifierContract`` or
  ``DeterministicVerifierContract`` if it declares that property
- controller: :class:`specexp.testing.controllers.ControllerContract`, ``make_controller()``;
  ``FrozenControllerContract`` if it does not learn
- runtime: :class:`specexp.testing.runtimes.RuntimeContract`, ``runtime()``
- prompt set: :class:`specexp.testing.prompt_sets.PromptSetContract`, the fixture ``prompt_set``

``make_...()`` returns a *new* part in its initial state, identical on every call. The tests check what a part declares,
such as what it learns from and how it samples; the default is always the least favorable value. The tests of a part
with an extra ability must inherit the class that covers it; otherwise, a test fails and names that class. For each
family of decoding parts, a test compares the output with that of plain decoding, using :mod:`specexp.testing.fakes`
(models without weights). A part's own tests can check its candidates or trees with ``fakes`` and
:func:`specexp.testing.builders.grow`.

These modules need pytest, which the ``dev`` extra installs; no other module of specexp imports them.
"""
