"""Which prompts of a set are decoded, in which order, and how they become tokens.

This module does not import Lightning, so that a configuration with a workload is checked in well under a second;
:class:`~specexp.data.prompts.PromptDataModule` hands the prompts to a Lightning trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from specexp.data.prompt import Prompt, first_turn_ids
from specexp.data.prompt_set import PromptSet, PromptSetError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


class Workload:
    """A choice of prompts from a set.

    The order is fixed first (the file's, or shuffled by ``shuffle_seed``), then ``offset`` prompts are passed
    over, then at most ``max_prompts`` are taken. Two workloads with the same seed, the second with an
    ``offset`` of the first's ``max_prompts``, share no prompt: search on the one, confirm on the other.

    Args:
        prompts: the set the prompts come from.
        max_prompts: how many prompts are taken at most; None for all that are left after ``offset``.
        shuffle_seed: the seed of one fixed shuffled order, the same for every trial and every arm; None for the file's
            order.
        offset: how many prompts of that order are passed over.
        max_prompt_tokens: the longest first turn, in tokens, template and special tokens included; None for no limit.
            Later turns depend on the answers: see :meth:`Prompt.longest_context`.
        too_long: what happens to a longer one. ``refuse``: the run stops before it starts. ``truncate``: the last
            tokens stay, for what is asked stands mostly at the end, and with them a leading BOS token.
        chat_template: whether turns are written with the tokenizer's chat template. A tokenizer without one gets the
            plain text.

    Example::

        workload = Workload(SpecBench("spec_bench/question.jsonl"), max_prompts=24, shuffle_seed=0)
        workload.load(tokenizer)[0].token_ids
    """

    def __init__(
        self,
        prompts: PromptSet,
        max_prompts: Annotated[int, Field(ge=1)] | None = None,
        shuffle_seed: Annotated[int, Field(ge=0)] | None = None,
        offset: Annotated[int, Field(ge=0)] = 0,
        max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None,
        too_long: Literal["refuse", "truncate"] = "refuse",
        chat_template: bool = False,
    ) -> None:
        if chat_template and prompts.prompt_tokens is not None:
            raise ValueError(
                f"chat_template: true does not go with {type(prompts).__name__}, whose prompts are the first "
                f"{prompts.prompt_tokens} tokens of raw text; set chat_template: false."
            )
        self.prompts = prompts
        self.max_prompts = max_prompts
        self.shuffle_seed = shuffle_seed
        self.offset = offset
        self.max_prompt_tokens = max_prompt_tokens
        self.too_long = too_long
        self.chat_template = chat_template

    def load(self, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
        """The chosen prompts in their order, at least one.

        Raises:
            PromptSetError: the set cannot be read, ``offset`` passes over all of it, or a prompt is too long
                or has no token.
        """
        chat_template = self.chat_template and tokenizer.chat_template is not None
        return [
            Prompt(
                prompt_id=row["prompt_id"],
                category=row["category"],
                turns=tuple(row["turns"]),
                token_ids=tuple(self._token_ids(tokenizer, row["prompt_id"], row["turns"][0], chat_template)),
                index=row["index"],
                chat_template=chat_template,
            )
            for row in self.rows()
        ]

    def rows(self) -> Dataset:
        """The chosen prompts in their order, not tokenized: ``prompt_id``, ``category``, ``turns`` and ``index``.

        Raises:
            PromptSetError: the set cannot be read, or ``offset`` passes over all of it.
        """
        rows = self.prompts.load()
        if self.offset >= len(rows):
            raise PromptSetError(
                f"offset: {self.offset} passes over all {len(rows)} prompts of {self._name}; "
                f"it can be at most {len(rows) - 1}.",
                ("offset",),
            )
        rows = rows.add_column("index", list(range(len(rows))))
        if self.shuffle_seed is not None:
            rows = rows.shuffle(seed=self.shuffle_seed, keep_in_memory=True)
        end = len(rows) if self.max_prompts is None else min(self.offset + self.max_prompts, len(rows))
        return rows.select(range(self.offset, end))

    @property
    def _name(self) -> str:
        return type(self.prompts).__name__

    def _token_ids(
        self, tokenizer: PreTrainedTokenizerBase, prompt_id: str, text: str, chat_template: bool
    ) -> list[int]:
        ids = first_turn_ids(tokenizer, text, chat_template)[: self.prompts.prompt_tokens]
        if not ids:
            raise PromptSetError(f"prompt {prompt_id!r} of {self._name} has no token with this tokenizer.")
        limit = self.max_prompt_tokens
        if limit is None or len(ids) <= limit:
            return ids
        if self.too_long == "refuse":
            raise PromptSetError(
                f"prompt {prompt_id!r} of {self._name} has {len(ids)} tokens, more than max_prompt_tokens: "
                f"{limit}; raise it, or set too_long: truncate.",
                ("max_prompt_tokens",),
            )
        # Models trained with a BOS token answer badly without it.
        kept = ids[:1] if ids[0] == tokenizer.bos_token_id and limit > 1 else []
        return kept + ids[len(ids) - (limit - len(kept)) :]
