"""Replay: a recording of a target and its drafters in place of the models, for trees, thresholds and controllers.

Under greedy and keyed sampling the output does not depend on how it is speculated (``specexp.verifiers``), so one
recording serves every composition that needs no other answers. Builders, controllers and drafters are the objects that
decode with models; only the models' answers come from the recording.
"""
