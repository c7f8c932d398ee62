"""A tokenizer and models small enough to be made in a moment."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

EOS = 2


class LetterTokenizer:
    """One token a letter; enough of a tokenizer for prompts without chat template."""

    eos_token_id = EOS
    chat_template = None
    all_special_ids = (EOS,)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(letter) % 40 for letter in text]}


def tiny_llama(
    seed: int, dtype: torch.dtype = torch.float32, noise: float = 0.0, context: int = 256
) -> LlamaForCausalLM:
    """A random model; with ``noise`` a neighbour of the one with the same seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters() if noise else ():
            parameter += noise * torch.randn_like(parameter)
    return model.to(dtype)
