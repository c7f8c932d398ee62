"""Replay: decoding from a recording of a target and its drafters instead of running the models.

Under greedy and keyed sampling, the output does not depend on the drafts (``specexp.verifiers``). One recording
therefore serves every composition that needs only recorded predictions. Builders, controllers and drafters run the same
code as in live decoding. Only the models' predictions are read from the recording.
"""
