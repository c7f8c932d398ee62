"""Workloads: the selection and order of a set's prompts, their token ids, and the context of each turn."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from specexp.base.checked import Checked
from specexp.base.messages import counted, first_line, restated
from specexp.data.chat import Message, check_template_arguments, rendered, template_name, template_text
from specexp.data.prompt_set import PromptSet, PromptSetError, UnusableRow, unusable_rows

if TYPE_CHECKING:
    from datasets import Dataset
    from torch.utils.data import DataLoader
    from transformers import PreTrainedTokenizerBase

PROMPTS = "prompts.json"
"""The name of the result file that lists all changes to prompts, such as cuts."""
_VARYING = (
    "a study continues only while its prompts keep their tokens, so set the date by data.chat_template_kwargs, if the "
    "template has a variable for it, or write it into the template"
)
_ENDING = 40  # number of characters of a rendered prompt in a notice
ANSWER = "specexp-answer-stands-here"
"""A placeholder for the model's answers when a chat template is rendered."""


@dataclass(frozen=True)
class Prompt:
    """A prompt with one or more turns.

    Example::

        ids = prompt.turn_ids(tokenizer, 0)
        ids = prompt.turn_ids(tokenizer, 1, [*ids, *answer])  # continues from the kept cache
    """

    prompt_id: str
    category: str
    turns: tuple[str, ...]  # the user's texts, one for each turn, unchanged
    # the model's input for the first turn, with any chat template or special tokens, cut if too long
    token_ids: tuple[int, ...]
    index: int  # row number in the set's own order, from 0; part of the key for random numbers
    chat_template: bool = False  # whether turns are rendered with the tokenizer's chat template
    context: tuple[Message, ...] = ()  # messages before the first turn, such as a system prompt
    # variables of the chat template, such as ``enable_thinking``
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    # constraint on every answer (see :func:`~specexp.constraints.grammar.constraint_of`); None for free answers
    structured_outputs: Mapping[str, Any] | None = None

    def turn_ids(
        self, tokenizer: PreTrainedTokenizerBase, turn: int, previous_token_ids: Sequence[int] = ()
    ) -> list[int]:
        """Return the model's full input for a turn (numbered from 0), up to where the answer begins.

        The result starts with ``previous_token_ids``, so that their KV cache stays valid. A later turn is appended as
        the chat template renders it after an answer, or after a blank line if there is no template. An end-of-turn
        token at the end of the answer is not repeated. ``previous_token_ids`` are input and answer of the previous
        turn, EOS included; empty for turn 0. Raises IndexError if there is no such turn, and ValueError if they do not
        match the turn or the chat template drops earlier answers.
        """
        if not 0 <= turn < len(self.turns):
            raise IndexError(
                f"prompt {self.prompt_id!r}: turn must be an integer from 0 to {len(self.turns) - 1}, got {turn}"
            )
        if (turn == 0) == bool(previous_token_ids):
            raise ValueError(
                f"prompt {self.prompt_id!r}, turn {turn}: previous_token_ids must be empty for turn 0, and must not be "
                "empty for a later turn"
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
        """Return the context length after the last turn, assuming that every answer has ``max_new_tokens`` tokens."""
        length = len(self.token_ids) + max_new_tokens
        for turn in range(1, len(self.turns)):
            # -1 represents the previous tokens, since it never equals an end-of-turn token
            length += len(self.turn_ids(tokenizer, turn, [-1])) - 1 + max_new_tokens
        return length

    def _after_answer(self, tokenizer: PreTrainedTokenizerBase, turn: int) -> str:
        """Return the chat template's text between the answer before ``turn`` and the answer to ``turn``."""
        messages = list(self.context)
        for text in self.turns[:turn]:
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ANSWER}]
        messages.append({"role": "user", "content": self.turns[turn]})
        try:
            _, found, after = rendered(tokenizer, messages, self.template_arguments).rpartition(ANSWER)
        except Exception as error:
            why = f"is rejected by the tokenizer's chat template ({first_line(error)})"
            raise PromptSetError(f"prompt {self.prompt_id!r}: turn {turn} {why}", ("chat_template",)) from error
        if not found:
            raise PromptSetError(
                f"prompt {self.prompt_id!r} has {len(self.turns)} turns, but the tokenizer's chat template drops "
                "earlier answers; set chat_template: false",
                ("chat_template",),
            )
        return after


def renders_turns(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    chat: bool | None = None,
    wanted: bool | Literal["auto"] = "auto",
) -> tuple[bool, str]:
    """Return whether a prompt is rendered with the tokenizer's chat template, and the reason if it is not.

    ``text`` is the first turn. ``chat`` is true for chat messages, false for a text to be continued and None if
    unknown. ``wanted`` is ``data.chat_template``. Studies and the server both use this.
    """
    if not tokenizer.chat_template:
        return False, "the tokenizer has none"
    if wanted != "auto":
        return wanted, "data.chat_template is false"
    if chat is False:
        return False, "text to be continued"
    special = tuple(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    if chat is None and text.startswith(special):
        return False, "it begins with a special token, so it is rendered already"
    return True, ""


def first_turn_ids(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    chat_template: bool | None = None,
    context: Sequence[Message] = (),
    template_arguments: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the model's input for the first turn, including the messages before it.

    If ``chat_template`` is True, they are rendered with the tokenizer's chat template and ``template_arguments`` (see
    :func:`~specexp.data.chat.rendered`), up to the start of the answer. If it is False, their texts are joined with
    blank lines, and the tokenizer adds its special tokens, but no second BOS. None leaves the choice to
    :func:`renders_turns`.
    """
    if chat_template is None:
        chat_template, _ = renders_turns(tokenizer, text)
    return chat_ids(tokenizer, [*context, Message(role="user", content=text)], chat_template, template_arguments)


def chat_ids(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    chat_template: bool,
    template_arguments: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the model's input for a chat, which :func:`first_turn_ids` describes.

    If the last message is the assistant's, the answer continues it.
    """
    if not chat_template:
        ids = list(tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"])
        return ids[1:] if ids[:2] == [tokenizer.bos_token_id] * 2 else ids
    # the template renders the special tokens, so the tokenizer must not add them again
    return _ids(tokenizer, rendered(tokenizer, messages, template_arguments))


def ends_inside_a_token(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    """Return whether trailing whitespace in a text, as in ``"Answer: "``, is tokenized differently if a word follows.

    If so, the model has rarely seen these tokens before a word, and continues the text poorly.
    """
    if not text[-1:].isspace():
        return False
    ids = _ids(tokenizer, text)
    return _ids(tokenizer, f"{text}a")[: len(ids)] != ids


def varying_template(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any] | None = None) -> str:
    """Return a clause on a chat template that renders one prompt in two ways; empty if it does not, or is missing."""
    if not tokenizer.chat_template:
        return ""

    def render(time: str) -> str:
        # a macro shadows the function of the same name that transformers gives every template
        clock = f"{{%- macro strftime_now(format) -%}}{time}{{%- endmacro -%}}"
        template = f"{clock}{template_text(tokenizer, arguments)}"
        messages = [{"role": "user", "content": "a"}]
        given: Any = {**(arguments or {}), "chat_template": template, "tokenize": False}
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, **given))

    try:
        if len({render("2001") for _ in range(8)}) > 1:
            return "the tokenizer's chat template renders a prompt differently each time"
        dated = render("2001") != render("2012")
    except Exception:  # loading the prompts gives the template's own error
        return ""
    return "the tokenizer's chat template prints the time (strftime_now)" if dated else ""


def digest_of_prompts(prompts: Sequence[Prompt]) -> str:
    """Return a short digest of the token ids of all first turns, the texts of all turns, and the constraints."""
    texts = [(list(map(int, one.token_ids)), *one.turns) for one in prompts]
    constraints = [one.structured_outputs for one in prompts if one.structured_outputs is not None]
    return hashlib.sha256(repr([*texts, *constraints]).encode()).hexdigest()[:16]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass
class Preparation:
    """A report of the changes made to a workload's prompts when they were loaded."""

    taken: int = 0  # number of loaded prompts
    rendered: int = 0  # number of prompts that are rendered with the tokenizer's chat template
    ending: str = ""  # the last characters of the first rendered prompt
    template: str = ""  # name of the chat template, if the tokenizer has several
    # number of other prompts, keyed by reason; empty if the tokenizer has no template
    not_rendered: dict[str, int] = field(default_factory=dict)
    too_long: str = "refuse"
    max_prompt_tokens: int | None = None
    # original lengths, in tokens, of prompts that were cut to ``max_prompt_tokens``, keyed by prompt id
    cut: dict[str, int] = field(default_factory=dict)
    # lengths, in tokens, of prompts that were skipped as too long, keyed by prompt id
    skipped: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int | None = None  # number of tokens to which raw texts are cut; None for other prompts
    openings: list[str] = field(default_factory=list)  # ids of raw texts that were longer than ``prompt_tokens``
    repeated: int = 0  # number of prompts with the same text as an earlier one
    # ids of prompts for which :func:`ends_inside_a_token` is true
    end_inside_a_token: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)  # the rows that were left out as unusable, each with the reason
    remarks: Sequence[str] = ()  # sentences about ignored fields of the rows
    varying: str = ""  # result of :func:`varying_template` if prompts are rendered

    def notes(self) -> list[str]:
        """Return one sentence for each kind of change, and one about the chat template if there is one."""
        taken = counted(self.taken, "prompt")
        longest = max(self.cut.values(), default=0)
        end = self.too_long.removeprefix("keep-")
        skipped = counted(len(self.skipped), "prompt")
        notes = {
            f"{len(self.cut)} of {taken} (of up to {longest} tokens) were cut to their {end} {self.max_prompt_tokens} "
            f"tokens (too_long: {self.too_long}).": self.cut,
            f"{skipped} with more than {self.max_prompt_tokens} tokens left out (too_long: skip).": self.skipped,
            f"{counted(len(self.unusable), 'row')} left out (unusable: skip). The first: "
            f"{next(iter(self.unusable), '')}": self.unusable,
            f"{len(self.openings)} of {taken} were cut to the first {self.prompt_tokens} tokens of a longer text "
            "(prompt_tokens).": self.openings,
            f"{self.repeated} of {taken} repeat the text of an earlier prompt, so the confidence intervals are too "
            "narrow.": self.repeated,
        }
        found = (note for note, found in notes.items() if found)
        return [*self.chat_template(), *self.remarks, *found, *self.warnings()]

    def chat_template(self) -> list[str]:
        """Return one sentence about the use of the chat template, and one if it varies; empty if there is none."""
        name = f" {self.template!r}" if self.template else ""
        use = f"Chat template{name}: {self.rendered} of {counted(self.taken, 'prompt')} rendered as a user's turn"
        if self.ending:
            use += f", the first up to {self.ending!r}"
        others = [f"{count} as written ({why})" for why, count in self.not_rendered.items()]
        vary = [f"{self.varying[:1].upper()}{self.varying[1:]}: {_VARYING}."] if self.varying else []
        return [f"{'; '.join([use, *others])}.", *vary] if self.rendered or others else []

    def warnings(self) -> list[str]:
        """Return a list with one warning to print before decoding if prompts end inside a token; otherwise empty."""
        ids = self.end_inside_a_token
        return [
            f"{len(ids)} of {counted(self.taken, 'prompt')} end in white space that is tokenized differently before a "
            f"word (the first is {first!r}); remove it, since specexp does not support token healing."
            for first in ids[:1]
        ]

    def files(self) -> dict[str, str]:
        """Return the text of the file :data:`PROMPTS`, keyed by file name; empty if there are no :meth:`notes`."""
        if not self.notes():
            return {}
        found = asdict(self)
        opening = {"prompt_tokens": found.pop("prompt_tokens"), "prompts": found.pop("openings")}
        return {PROMPTS: f"{json.dumps({**found, 'first_tokens_of_longer_texts': opening}, indent=1)}\n"}


class Workload(metaclass=Checked):
    """A selection of prompts from a prompt set.

    The prompts are ordered first (as in the file, or shuffled by ``shuffle_seed``). Then ``offset`` prompts are
    skipped, and at most ``max_prompts`` are taken. To search and confirm on different prompts, use two workloads with
    the same seed, and set the second one's ``offset`` to the first one's ``max_prompts``.

    Args:
        prompts: the prompt set.
        max_prompts: maximum number of prompts; None for all after ``offset``.
        shuffle_seed: seed for shuffling, shared by all trials and arms; None keeps the order of the file.
        offset: number of prompts to skip, after shuffling.
        max_prompt_tokens: maximum length of the first turn in tokens, including the template and special tokens; None
            for no limit. For later turns, see :meth:`Prompt.longest_context`.
        too_long: policy for longer prompts. ``refuse``: raise an error before decoding starts. ``keep-last``: keep the
            last tokens, where the question usually is, and a leading BOS token. ``keep-first``: keep the first tokens.
            ``skip``: drop the prompt without a replacement. Changed prompts are counted and reported.
        chat_template: whether to render turns with the tokenizer's chat template. ``auto``: if there is one, except for
            texts to be continued and texts that start with a special token, which are already rendered. If false,
            messages are joined with blank lines.
        unusable: policy for rows that cannot be read or rendered, such as images. ``refuse``: raise one error that
            names all of them. ``skip``: leave them out, except prompts that ``too_long`` refuses.
        chat_template_kwargs: variables of the chat template, such as ``enable_thinking``. The template must use them.
        field: name of the field that contains your own prompts; detected automatically if null.
        category: name of the field with the kind of each of your own prompts. Every stage of a study then draws each
            kind in its share of the file, and results are reported by kind.

    Attributes:
        preparation: report of the changes made when the prompts were last loaded.

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
        chat_template: bool | Literal["auto"] = "auto",
        unusable: Literal["refuse", "skip"] = "refuse",
        chat_template_kwargs: dict[str, Any] | None = None,
        field: str | None = None,
        category: str | None = None,
    ) -> None:
        if too_long != "refuse" and max_prompt_tokens is None:
            raise ValueError(
                f"max_prompt_tokens must be set if too_long is {too_long!r}: set it, or leave too_long out"
            )
        if chat_template is True and prompts.prompt_tokens is not None:
            raise ValueError(
                f"chat_template must not be true for {type(prompts).__name__}, since its prompts are the first "
                f"{prompts.prompt_tokens} tokens of raw text; set chat_template: false"
            )
        prompts = prompts if field is None else prompts.with_field(field)
        self.prompts = prompts if category is None else prompts.with_category(category)
        self.category = category
        self.max_prompts = max_prompts
        self.exhausted = False  # whether the set has no further rows, once they are read
        self.shuffle_seed = shuffle_seed
        self.offset = offset
        self.max_prompt_tokens = max_prompt_tokens
        self.too_long = too_long
        self.chat_template = chat_template
        self.unusable = unusable
        self.chat_template_kwargs = chat_template_kwargs or {}
        self.preparation = Preparation()

    def load(self, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
        """Return the selected prompts in order. There is at least one.

        Raises PromptSetError if the set cannot be read, ``offset`` skips all of it, a prompt is too long or empty, no
        prompt is left, or the chat template is missing.
        """
        self.preparation = Preparation(
            too_long=self.too_long,
            max_prompt_tokens=self.max_prompt_tokens,
            prompt_tokens=self.prompts.prompt_tokens,
        )
        with restated(ValueError, lambda error: PromptSetError(str(error), ("chat_template_kwargs",))):
            check_template_arguments(tokenizer, self.chat_template_kwargs)
        self.preparation.template = template_name(tokenizer, self.chat_template_kwargs)
        rows = self.rows()
        prompts: list[Prompt] = []
        unusable: list[UnusableRow] = []
        for row in rows:
            try:
                prompts += self._prompt(tokenizer, row)
            except UnusableRow as error:
                unusable.append(error)
        # those with a key are too long, which only too_long can allow
        refused = [one for one in unusable if self.unusable == "refuse" or one.key]
        if refused or (unusable and not prompts):
            raise unusable_rows(refused or unusable, len(rows))
        self.preparation.unusable = [f"{one.place}{one.why}" for one in (*self.prompts.unusable, *unusable)]
        self.preparation.taken = len(prompts)
        self.preparation.repeated = len(prompts) - len({(one.token_ids, one.turns) for one in prompts})
        self.preparation.remarks = self.prompts.remarks()
        if self.preparation.rendered:
            self.preparation.varying = varying_template(tokenizer, self.chat_template_kwargs)
        if not prompts:
            raise PromptSetError(
                f"all {len(self.preparation.skipped)} prompts of {self.prompts.label} were left out (too_long: skip): "
                f"each has more than max_prompt_tokens: {self.max_prompt_tokens} tokens; raise max_prompt_tokens",
                ("max_prompt_tokens",),
            )
        return prompts

    def available(self) -> int:
        """Return how many prompts the set has from :attr:`offset` on."""
        return len(self.prompts.first(None)) - self.offset

    def rows(self) -> Dataset:
        """Return the selected rows in order, not tokenized, with their ``index`` in the set's original order.

        Raises PromptSetError if the set cannot be read, or ``offset`` skips all of it.
        """
        # shuffling and interleaving need all rows
        whole = self.max_prompts is None or self.shuffle_seed is not None or self.category is not None
        rows = self.prompts.first(None if whole else self.offset + int(self.max_prompts or 0) + 1)  # is there one more?
        if self.prompts.unusable and self.unusable == "refuse":
            raise unusable_rows(self.prompts.unusable, len(rows) + len(self.prompts.unusable))
        if self.offset >= len(rows):
            raise PromptSetError(
                f"offset must be at most {len(rows) - 1}, since {self.prompts.label} has "
                f"{counted(len(rows), 'prompt')}, got {self.offset}",
                ("offset",),
            )
        rows = rows.add_column("index", list(range(len(rows))))
        if self.shuffle_seed is not None:
            rows = rows.shuffle(seed=self.shuffle_seed, keep_in_memory=True)
        if self.category is not None:
            rows = rows.select(_interleaved(rows["category"][:]))
        end = len(rows) if self.max_prompts is None else min(self.offset + self.max_prompts, len(rows))
        self.exhausted = end == len(rows)
        return rows.select(range(self.offset, end))

    def _prompt(self, tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]) -> Iterator[Prompt]:
        """Yield the prompt of a row, unless it is too long and must be dropped."""
        prompt_id = row["prompt_id"]
        turns = tuple(row["turns"])
        context = tuple(row.get("context") or ())
        name, where = f"prompt {prompt_id!r}", self.prompts.label
        chat = False if self.prompts.continued or self.prompts.prompt_tokens is not None else row.get("chat")
        chat_template, why = renders_turns(tokenizer, turns[0], chat=chat, wanted=self.chat_template)
        if not tokenizer.chat_template and (self.chat_template is True or (chat and self.chat_template)):
            raise PromptSetError(
                "chat_template must be false, since the tokenizer has no chat template, got true; set it to false, or "
                "use a chat model"
                if self.chat_template is True
                else f"{name} of {where} consists of chat messages, but the tokenizer has no chat template; use a chat "
                "model, or set data.chat_template: false, which joins the messages with blank lines",
                ("chat_template",),
            )
        try:
            whole = first_turn_ids(tokenizer, turns[0], chat_template, context, self.chat_template_kwargs)
        except Exception as error:  # templates are programs, and some raise for a role they do not support
            by = " with the tokenizer's chat template" if chat_template else ""
            raise UnusableRow(where, name, f" cannot be rendered{by} ({first_line(error)})") from error
        ids = whole[: self.prompts.prompt_tokens]
        if len(ids) < len(whole):
            self.preparation.openings.append(prompt_id)
        if not ids:
            raise UnusableRow(where, name, " is empty after tokenization")
        if self.max_prompt_tokens is not None and len(ids) > self.max_prompt_tokens:
            kept = self._shortened(name, ids, self.max_prompt_tokens, tokenizer.bos_token_id, chat_template)
            counts = self.preparation.skipped if kept is None else self.preparation.cut
            counts[prompt_id] = len(ids)
            if kept is None:
                return
            ids = kept
        if chat_template:
            self.preparation.rendered += 1
            self.preparation.ending = self.preparation.ending or tokenizer.decode(ids[-_ENDING:])[-_ENDING:]
        elif tokenizer.chat_template:
            self.preparation.not_rendered[why] = self.preparation.not_rendered.get(why, 0) + 1
        # a template adds its own text after the turn, and raw text is cut between tokens
        ends_as_written = not chat_template and self.prompts.prompt_tokens is None
        if ends_as_written and any(ends_inside_a_token(tokenizer, turn) for turn in turns):
            self.preparation.end_inside_a_token.append(prompt_id)
        given = (chat_template, context, self.chat_template_kwargs, row.get("structured_outputs"))
        yield Prompt(prompt_id, row["category"], turns, tuple(ids), row["index"], *given)

    def _shortened(
        self, name: str, ids: list[int], limit: int, bos_token_id: int | None, chat_template: bool
    ) -> list[int] | None:
        """Return the tokens to keep from a prompt that is too long, or None to drop the prompt."""
        if self.too_long == "refuse":
            why = (
                f" has {len(ids)} tokens, but max_prompt_tokens is {limit}; raise max_prompt_tokens, or set too_long "
                "to keep-last, keep-first or skip"
            )
            raise UnusableRow(self.prompts.label, name, why, ("max_prompt_tokens",))
        if self.too_long == "skip":
            return None
        if self.too_long == "keep-last":
            # models that were trained with a BOS token answer poorly without it
            kept = ids[:1] if ids[0] == bos_token_id and limit > 1 else []
            return kept + ids[len(ids) - (limit - len(kept)) :]
        if chat_template:
            raise PromptSetError(
                f"{name} has {len(ids)} tokens, and too_long: keep-first would cut off the end of its chat template, "
                "after which the answer begins; set too_long to keep-last or skip",
                ("too_long",),
            )
        return ids[:limit]


def _interleaved(categories: Sequence[str]) -> list[int]:
    """Return an order of the rows in which each stretch has every category in its share, as far as possible."""
    sizes = Counter(categories)
    taken: Counter[str] = Counter()
    shares = []  # of the rows of its category that a row is behind
    for category in categories:
        shares.append((taken[category] + 0.5) / sizes[category])
        taken[category] += 1
    return sorted(range(len(categories)), key=shares.__getitem__)


class LoadedPrompts:
    """The prompts of a workload in decoding order, loaded when they are first accessed."""

    def __init__(self, workload: Workload, tokenizer: PreTrainedTokenizerBase) -> None:
        self.workload = workload
        self.tokenizer = tokenizer

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The prompts returned by :meth:`Workload.load`."""
        return self.workload.load(self.tokenizer)

    @cached_property
    def digest(self) -> str:
        """The digest of all loaded prompts, including those that :meth:`keep` drops later."""
        return digest_of_prompts(self.prompts)

    def keep(self, prompts: Sequence[Prompt]) -> None:
        """Keep only these prompts, such as one worker's share."""
        self.digest  # noqa: B018 - computed before any prompt is dropped
        self.prompts = list(prompts)

    def loader(self) -> DataLoader[Prompt]:
        """Return a loader with one prompt per batch, for both ``fit`` and ``test`` of Lightning's Trainer."""
        from torch.utils.data import DataLoader

        # a list is a map-style data set; the workload shuffles it, and worker processes would only cost time
        return DataLoader(self.prompts, batch_size=1, shuffle=False, collate_fn=lambda batch: batch[0])  # type: ignore[arg-type]
