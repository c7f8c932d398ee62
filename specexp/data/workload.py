"""Prompts as token ids: the choice of prompts of a set, their order, and the context of each turn.

It imports no Lightning, so that a configuration is checked fast; :mod:`specexp.data.prompts` does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from specexp.core.checked import Checked
from specexp.core.messages import counted, first_line
from specexp.data.prompt_set import Message, PromptSet, PromptSetError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

PROMPTS = "prompts.json"
"""File with every change to a prompt on its way to the model."""
ANSWER = "specexp-answer-stands-here"
"""Placeholder of an answer while a chat template is rendered."""


@dataclass(frozen=True)
class Prompt:
    """A prompt of one or more turns.

    Attributes:
        turns: the user's texts, one a turn, exactly as in the set.
        token_ids: the first turn as the model reads it, with chat template or special tokens, cut by the workload.
        index: row in the set's own order, from 0; random numbers are keyed by it.
        chat_template: whether turns are written with the tokenizer's chat template.
        context: messages before the first turn, such as a system prompt.

    Example::

        ids = prompt.turn_ids(tokenizer, 0)
        ids = prompt.turn_ids(tokenizer, 1, [*ids, *answer])  # continues from the kept cache
    """

    prompt_id: str
    category: str
    turns: tuple[str, ...]
    token_ids: tuple[int, ...]
    index: int
    chat_template: bool = False
    context: tuple[Message, ...] = ()

    def turn_ids(
        self, tokenizer: PreTrainedTokenizerBase, turn: int, previous_token_ids: Sequence[int] = ()
    ) -> list[int]:
        """Return the whole context of a turn, from 0, to be continued by its answer.

        The result starts with ``previous_token_ids``, so that their cache stays valid. Without chat template a later
        turn follows after a blank line. With one, the template's text between an answer and the next turn is added;
        an end-of-turn token at the end of the answer is not repeated.

        Args:
            previous_token_ids: the context so far with the last answer, EOS included; empty for turn 0.

        Raises:
            IndexError: there is no such turn.
            ValueError: previous tokens are missing or not expected, or the chat template leaves out answers.
        """
        if not 0 <= turn < len(self.turns):
            raise IndexError(
                f"prompt {self.prompt_id!r} has {len(self.turns)} turn(s), so there is no turn {turn}."
            )
        if (turn == 0) == bool(previous_token_ids):
            raise ValueError(
                f"prompt {self.prompt_id!r}, turn {turn}: previous_token_ids must be empty for turn 0 and hold at "
                "least one token for a later turn."
            )
        if turn == 0:
            return list(self.token_ids)
        if not self.chat_template:
            return [*previous_token_ids, *_ids(tokenizer, f"\n\n{self.turns[turn]}")]
        added = _ids(tokenizer, self._after_answer(tokenizer, turn))
        if added and added[0] == previous_token_ids[-1] and added[0] in tokenizer.all_special_ids:
            added = added[1:]
        return [*previous_token_ids, *added]

    def longest_context(self, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int) -> int:
        """Return the number of tokens of all turns if every answer has ``max_new_tokens``."""
        length = len(self.token_ids) + max_new_tokens
        for turn in range(1, len(self.turns)):
            # -1 is not a token, so it is never taken for a repeated end-of-turn token.
            length += len(self.turn_ids(tokenizer, turn, [-1])) - 1 + max_new_tokens
        return length

    def _after_answer(self, tokenizer: PreTrainedTokenizerBase, turn: int) -> str:
        """Return the chat template's text from the answer before ``turn`` to the next answer."""
        messages = list(self.context)
        for text in self.turns[:turn]:
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ANSWER}]
        messages.append({"role": "user", "content": self.turns[turn]})
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        _, found, after = str(rendered).rpartition(ANSWER)
        if not found:
            raise ValueError(
                f"prompt {self.prompt_id!r} has {len(self.turns)} turns, but the tokenizer's chat template "
                "leaves out earlier answers; set chat_template: false."
            )
        return after


def first_turn_ids(
    tokenizer: PreTrainedTokenizerBase, text: str, chat_template: bool, context: Sequence[Message] = ()
) -> list[int]:
    """Return the first turn as the model reads it, with the messages before it.

    It is written with the tokenizer's chat template, up to where the answer starts. Without one, the texts of all
    messages are separated by blank lines, and the tokenizer adds its special tokens.
    """
    messages = [*context, Message(role="user", content=text)]
    if not chat_template:
        return list(tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"])
    # A template writes the special tokens itself, so the tokenizer must not add them again.
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return _ids(tokenizer, str(rendered))


def ends_inside_a_token(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    """Return whether a text ends in white space that becomes other tokens when a word follows, as ``"Answer: "``.

    A model has rarely seen a word after such tokens, so it continues the text badly.
    """
    if not text[-1:].isspace():
        return False
    ids = _ids(tokenizer, text)
    return _ids(tokenizer, f"{text}a")[: len(ids)] != ids


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass
class Preparation:
    """Changes to prompts between the file and the model, of one loading of a workload.

    Attributes:
        taken: number of prompts that are decoded.
        cut: original length in tokens of each prompt above ``max_prompt_tokens`` that was cut, by id.
        skipped: the same for prompts that were left out.
        prompt_tokens: length to which raw texts are cut; None for other prompts.
        openings: ids of raw texts that were longer.
        repeated: number of prompts with the same text as an earlier one.
        end_inside_a_token: ids of prompts that end in white space that becomes other tokens when a word follows.
        remarks: sentences about ignored parts of the rows.
    """

    taken: int = 0
    too_long: str = "refuse"
    max_prompt_tokens: int | None = None
    cut: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int | None = None
    openings: list[str] = field(default_factory=list)
    repeated: int = 0
    end_inside_a_token: list[str] = field(default_factory=list)
    remarks: Sequence[str] = ()

    def notes(self) -> list[str]:
        """Return the changes in sentences; none if prompts are decoded as they are."""
        taken, longest = counted(self.taken, "prompt"), max(self.cut.values(), default=0)
        end, skipped = self.too_long.removeprefix("keep-"), counted(len(self.skipped), "prompt")
        notes = {
            f"{len(self.cut)} of {taken} cut to the {end} {self.max_prompt_tokens} of up to {longest} tokens "
            f"(too_long: {self.too_long}).": self.cut,
            f"{skipped} of more than {self.max_prompt_tokens} tokens left out (too_long: skip).": self.skipped,
            f"{len(self.openings)} of {taken} are the first {self.prompt_tokens} tokens of a longer text "
            "(prompt_tokens).": self.openings,
            f"{self.repeated} of {taken} repeat the text of an earlier one, so the intervals are narrower than they "
            "should be.": self.repeated,
        }
        return [*self.remarks, *(note for note, found in notes.items() if found), *self.warnings()]

    def warnings(self) -> list[str]:
        """Return a sentence, to be printed before decoding, if prompts end inside a token."""
        ids = self.end_inside_a_token
        return [
            f"{len(ids)} of {counted(self.taken, 'prompt')} end in white space that becomes other tokens when a word "
            f"follows (the first is {first!r}); specexp does no token healing, so remove it."
            for first in ids[:1]
        ]

    def files(self) -> dict[str, str]:
        """Return :data:`PROMPTS` and its content; none if prompts are decoded as they are."""
        if not self.notes():
            return {}
        found = asdict(self)
        opening = {"prompt_tokens": found.pop("prompt_tokens"), "prompts": found.pop("openings")}
        return {PROMPTS: f"{json.dumps({**found, 'first_tokens_of_longer_texts': opening}, indent=1)}\n"}


class Workload(metaclass=Checked):
    """A choice of prompts from a set.

    The order is fixed first (the file's, or shuffled by ``shuffle_seed``), then ``offset`` prompts are skipped, then
    at most ``max_prompts`` are taken. Two workloads with the same seed, the second with an ``offset`` of the first's
    ``max_prompts``, share no prompt: search on the one, confirm on the other.

    Args:
        prompts: the prompt set.
        max_prompts: maximal number of prompts; None for all that are left after ``offset``.
        shuffle_seed: seed of one fixed shuffled order, the same for every trial and arm; None for the file's order.
        offset: number of prompts of that order that are skipped.
        max_prompt_tokens: the longest first turn, in tokens, template and special tokens included; None for no limit.
            Later turns depend on the answers: see :meth:`Prompt.longest_context`.
        too_long: policy for a longer one. ``refuse``: the run stops before it starts. ``keep-last``: the last
            tokens stay, since the question is mostly at the end, and with them a leading BOS token. ``keep-first``:
            the first tokens stay. ``skip``: it is left out, and no other takes its place. All are counted and reported.
        chat_template: whether turns are written with the tokenizer's chat template. If null, chat messages are and
            other prompts are not; if false, messages are joined by blank lines.
        field: the field of your own prompts that holds them; recognised if null.

    Attributes:
        preparation: changes to the prompts when they were last loaded.

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
        too_long: Literal["refuse", "keep-last", "keep-first", "skip"] = "refuse",
        chat_template: bool | None = None,
        field: str | None = None,
    ) -> None:
        if too_long != "refuse" and max_prompt_tokens is None:
            raise ValueError(
                f"too_long: {too_long} is for prompts of more than max_prompt_tokens, which is not set: set it, or "
                "leave too_long out"
            )
        if chat_template and prompts.prompt_tokens is not None:
            raise ValueError(
                f"chat_template: true does not go with {type(prompts).__name__}: its prompts are the first "
                f"{prompts.prompt_tokens} tokens of raw text; set chat_template: false."
            )
        self.prompts = prompts if field is None else prompts.with_field(field)
        self.max_prompts = max_prompts
        self.shuffle_seed = shuffle_seed
        self.offset = offset
        self.max_prompt_tokens = max_prompt_tokens
        self.too_long = too_long
        self.chat_template = chat_template
        self.preparation = Preparation()

    def load(self, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
        """Return the chosen prompts in their order, at least one.

        Raises:
            PromptSetError: the set cannot be read, ``offset`` passes over all of it, a prompt is too long or has no
                token, all were left out, or the tokenizer has no chat template and one is needed.
        """
        self.preparation = Preparation(
            too_long=self.too_long,
            max_prompt_tokens=self.max_prompt_tokens,
            prompt_tokens=self.prompts.prompt_tokens,
        )
        prompts = [prompt for row in self.rows() if (prompt := self._prompt(tokenizer, row)) is not None]
        self.preparation.taken = len(prompts)
        self.preparation.repeated = len(prompts) - len({(one.token_ids, one.turns) for one in prompts})
        self.preparation.remarks = self.prompts.remarks()
        if not prompts:
            raise PromptSetError(
                f"all {len(self.preparation.skipped)} prompts of {self.prompts.label} have more tokens than "
                f"max_prompt_tokens: {self.max_prompt_tokens}, and too_long: skip leaves none; raise it.",
                ("max_prompt_tokens",),
            )
        return prompts

    def rows(self) -> Dataset:
        """Return the chosen prompts in their order, not tokenized: ``prompt_id``, ``category``, ``turns``, ``index``.

        Raises:
            PromptSetError: the set cannot be read, or ``offset`` passes over all of it.
        """
        # A shuffled order needs all of them.
        whole = self.max_prompts is None or self.shuffle_seed is not None
        rows = self.prompts.first(None if whole else self.offset + int(self.max_prompts or 0))
        if self.offset >= len(rows):
            raise PromptSetError(
                f"offset {self.offset} passes over all {len(rows)} prompts of {self.prompts.label}; "
                f"it can be at most {len(rows) - 1}.",
                ("offset",),
            )
        rows = rows.add_column("index", list(range(len(rows))))
        if self.shuffle_seed is not None:
            rows = rows.shuffle(seed=self.shuffle_seed, keep_in_memory=True)
        end = len(rows) if self.max_prompts is None else min(self.offset + self.max_prompts, len(rows))
        return rows.select(range(self.offset, end))

    def _prompt(self, tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]) -> Prompt | None:
        """Return a row as a prompt; None if it is too long and left out."""
        prompt_id, turns, context = row["prompt_id"], tuple(row["turns"]), tuple(row.get("context") or ())
        name = f"prompt {prompt_id!r} of {self.prompts.label}"
        chat_template = bool(row.get("chat")) if self.chat_template is None else self.chat_template
        if chat_template and tokenizer.chat_template is None:
            raise PromptSetError(
                "chat_template is true, but the tokenizer has none; set it to false, or take a chat model."
                if self.chat_template
                else f"{name} is made of chat messages, but the tokenizer has no chat template; take a chat model, or "
                "set data.chat_template: false, which joins their texts with blank lines.",
                ("chat_template",),
            )
        try:
            whole = first_turn_ids(tokenizer, turns[0], chat_template, context)
        except Exception as error:  # templates are programs, and some refuse a role
            by = " with the tokenizer's chat template" if chat_template else ""
            raise PromptSetError(f"{name} cannot be tokenized{by} ({first_line(error)}).") from error
        ids = whole[: self.prompts.prompt_tokens]
        if len(ids) < len(whole):
            self.preparation.openings.append(prompt_id)
        if not ids:
            raise PromptSetError(f"{name} has no token with this tokenizer.")
        if self.max_prompt_tokens is not None and len(ids) > self.max_prompt_tokens:
            kept = self._shortened(name, ids, self.max_prompt_tokens, tokenizer.bos_token_id, chat_template)
            counts = self.preparation.skipped if kept is None else self.preparation.cut
            counts[prompt_id] = len(ids)
            if kept is None:
                return None
            ids = kept
        # A template's own text follows a turn, and the first tokens of a raw text end at a token's end.
        ends_as_written = not chat_template and self.prompts.prompt_tokens is None
        if ends_as_written and any(ends_inside_a_token(tokenizer, turn) for turn in turns):
            self.preparation.end_inside_a_token.append(prompt_id)
        return Prompt(prompt_id, row["category"], turns, tuple(ids), row["index"], chat_template, context)

    def _shortened(
        self, name: str, ids: list[int], limit: int, bos_token_id: int | None, chat_template: bool
    ) -> list[int] | None:
        """Return the kept tokens of a prompt that is too long; None if it is left out."""
        if self.too_long == "refuse":
            raise PromptSetError(
                f"{name} has {len(ids)} tokens, more than max_prompt_tokens: {limit}; raise it, or set too_long: "
                "keep-last, keep-first or skip.",
                ("max_prompt_tokens",),
            )
        if self.too_long == "skip":
            return None
        if self.too_long == "keep-last":
            # Models trained with a BOS token answer badly without it.
            kept = ids[:1] if ids[0] == bos_token_id and limit > 1 else []
            return kept + ids[len(ids) - (limit - len(kept)) :]
        if chat_template:
            raise PromptSetError(
                f"{name} has {len(ids)} tokens, and too_long: keep-first would cut off the end of its chat template, "
                "where the answer begins; set too_long: keep-last or skip.",
                ("too_long",),
            )
        return ids[:limit]
