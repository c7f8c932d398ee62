"""The recipe of the embedded pair: tokenizer, corpus, training, export and its figures."""
