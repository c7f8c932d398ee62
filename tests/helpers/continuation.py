"""Whether a prompt ends where a token of its continuation begins."""

from transformers import PreTrainedTokenizerBase


def starts_with(tokenizer: PreTrainedTokenizerBase, prompt: str, continuation: str) -> bool:
    """Return whether the tokens of both texts together begin with the tokens of the prompt."""
    ids = tokenizer(prompt).input_ids
    return tokenizer(prompt + continuation).input_ids[: len(ids)] == ids


def continuation_in_the_examples(prompt: str) -> str:
    """Return the continuation in the examples of a task's prompt, after the label that ends it."""
    label = prompt[prompt.rstrip("\n").rindex("\n") :]
    continuation = prompt.partition(label)[2].partition("\n\n")[0]
    assert continuation
    return continuation
