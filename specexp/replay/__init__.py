"""Replay: a recording of a target and its drafters answers "what if" for trees, thresholds and controllers.

Under greedy and keyed sampling the output does not depend on how it is speculated (``specexp.verifiers``), so one
recording serves every composition whose questions it holds answers to. The builders, controllers and drafters are the
very objects that decode with models; only what a model would say comes from the recording.
"""
