"""What became of prompts on their way from a file to the model: nothing of it happens unsaid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from specexp.core.messages import counted

PROMPTS = "prompts.json"
"""File that says of every prompt what became of it."""


@dataclass
class Preparation:
    """Counts of one loading of a workload.

    Attributes:
        taken: Prompts that are decoded.
        policy: What happened to those that were too long.
        limit: Most tokens of a prompt; None where there is no limit.
        cut: Tokens that a cut prompt had, by its id.
        skipped: The same of those that were left out.
        opening_tokens: How many first tokens of raw texts are prompts; None of prompts that stand as they are.
        openings: Ids of the raw texts of which more was left.
        repeated: Prompts whose text is an earlier one's.
        inside_a_token: Ids of prompts that end in white space that becomes other tokens when a word follows.
        remarks: What of the rows was not obeyed.
    """

    taken: int = 0
    policy: str = "refuse"
    limit: int | None = None
    cut: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    opening_tokens: int | None = None
    openings: list[str] = field(default_factory=list)
    repeated: int = 0
    inside_a_token: list[str] = field(default_factory=list)
    remarks: Sequence[str] = ()

    def notes(self) -> list[str]:
        """The same in sentences; none where prompts are decoded as they stand."""
        said = list(self.remarks)
        if self.cut:
            end = "last" if self.policy == "keep-last" else "first"
            said.append(
                f"{len(self.cut)} of {counted(self.taken, 'prompt')} cut to the {end} {self.limit} of up to "
                f"{max(self.cut.values())} tokens (too_long: {self.policy})."
            )
        if self.skipped:
            said.append(
                f"{counted(len(self.skipped), 'prompt')} of more than {self.limit} tokens left out (too_long: skip)."
            )
        if self.openings:
            said.append(
                f"{len(self.openings)} of {counted(self.taken, 'prompt')} are the first {self.opening_tokens} tokens "
                "of a longer text (prompt_tokens)."
            )
        if self.repeated:
            said.append(
                f"{self.repeated} of {counted(self.taken, 'prompt')} repeat the text of an earlier one, so the "
                "intervals are narrower than they should be."
            )
        return [*said, *self.warnings()]

    def warnings(self) -> list[str]:
        """A sentence if prompts end inside a token, to be printed before anything is decoded."""
        if not self.inside_a_token:
            return []
        first, count = self.inside_a_token[0], len(self.inside_a_token)
        return [
            f"{count} of {counted(self.taken, 'prompt')} end in white space that becomes other tokens when a word "
            f"follows (the first is {first!r}); specexp does no token healing, so remove it."
        ]

    def files(self) -> dict[str, str]:
        """The file that says so of every prompt; none where they stand as they were."""
        if not self.notes():
            return {}
        found = {
            "taken": self.taken,
            "too_long": self.policy,
            "max_prompt_tokens": self.limit,
            "cut": self.cut,
            "skipped": self.skipped,
            "first_tokens_of_longer_texts": {"prompt_tokens": self.opening_tokens, "prompts": self.openings},
            "repeated": self.repeated,
            "end_inside_a_token": self.inside_a_token,
            "remarks": list(self.remarks),
        }
        return {PROMPTS: f"{json.dumps(found, indent=1)}\n"}
