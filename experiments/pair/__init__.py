"""The recipe of the embedded pair of models: tokenizer, corpus, training, export and evaluation."""
