"""A tokenizer of digits and a few signs, and a task of counting down, for a model of as many tokens."""

from typing import ClassVar

from specexp.data.tasks import Check, Ending, Item, Task

SIGNS = "0123456789;:"


class DigitTokenizer:
    """A token for each sign; other characters are dropped."""

    chat_template = None
    all_special_ids = ()
    eos_token_id = bos_token_id = None

    def __call__(self, text, **kwargs):
        return {"input_ids": [SIGNS.index(sign) for sign in text if sign in SIGNS]}

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(SIGNS[token] for token in tokens)


class Countdown(Task):
    """Counting down from a number; an evaluation is the first digit, anything else is unparsable."""

    name: ClassVar[str] = "Countdown"
    depth: ClassVar[int] = 3
    unparsable = -1.0
    value_ending = Ending((";",), 4)

    def load(self):
        return [Item(str(start), index, str(start), ("5",)) for index, start in enumerate((57, 68, 91))]

    def thought_prompt(self, item, thoughts, last=False):
        return f"{item.problem}:{';'.join(thoughts)}{';;' if last else ';'}"

    def thought_ending(self, last=False):
        return Ending((";",), 5 if last else 9)

    def value_prompt(self, item, thoughts):
        return f"{item.problem}:{';'.join(thoughts)}:"

    def read_value(self, answer):
        return float(answer[0]) if answer[:1].isdigit() else None

    def check(self, item, thoughts):
        right = thoughts[-1].startswith(item.reference[0])
        return Check(right, "" if right else "it starts with another digit")
