"""Trees of thought: reasoning tasks, and searches over their partial solutions (SEED, Algorithm 1).

Nothing here decodes. A task writes prompts and reads answers; a search asks for continuations and values of states;
whoever drives both decides how the text comes about, serially or many sequences at once.
"""
