"""An experiment answered by a recording instead of models: which one, and whether it is made as configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.config.composed import build_generation, build_verifier, is_grouped
from specexp.config.config import Config, is_replayed, recording_folder
from specexp.config.errors import ConfigError
from specexp.config.schema import Generation
from specexp.core.messages import first_line

if TYPE_CHECKING:
    from specexp.replay.format.recording import Recording

_SAME_PAIR = ("target", "target_dtype")
_SAME_DRAFT = ("draft", "draft_dtype")
_SAME_GENERATION = ("seed", "stop_at_eos")
"""What the recorded output depends on, beside models and verifier."""


def open_recording(config: Config) -> Recording:
    """The recording that ``backend: replay`` asks for answers, made as the experiment is configured.

    Raises:
        ConfigError: there is none, it was cut off or damaged, or its output is another one than would be replayed.
    """
    from specexp.replay.format.errors import RecordingError
    from specexp.replay.format.recording import Recording
    from specexp.replay.play.fidelity import law_of

    key = "recording" if config.get("recording") is not None or not is_replayed(config) else "backend"
    if config.get("recording") is None and config.get("record.to") is not None:
        key = "record.to"
    try:
        recording = Recording(recording_folder(config))
        drafted = recording.manifest.made_of.get("scoring") is not None
        same_pair = _SAME_PAIR + (_SAME_DRAFT if drafted else ())
        for section, keys in (("pair", same_pair), ("generation", _SAME_GENERATION)):
            recording.check_made_of(section, config.get(section), keys)
        _check_length(recording, build_generation(config))
        recording.check_made_of("law", law_of(build_verifier(config)))
    except RecordingError as error:
        raise ConfigError(
            f"{config.source_of(tuple(key.split('.')))}: {key}: {first_line(error).removeprefix('recording: ')}"
        ) from error
    return recording


def _check_length(recording: Recording, wanted: Generation) -> None:
    """Refuse more answers, or longer ones, than were recorded.

    Raises:
        RecordingError: one sentence with both numbers.
    """
    from specexp.replay.format.errors import RecordingError

    made = recording.manifest.made_of["generation"]
    several = any(turns[0].turns > 1 for turns in recording.turns.values())
    for key in ("max_new_tokens", "samples"):
        recorded, given = made[key], getattr(wanted, key)
        # of several turns a later one answers what the whole earlier answer led to
        exactly = several and key == "max_new_tokens"
        if given > recorded or (exactly and given != recorded):
            raise RecordingError(
                f"{recording.folder} was made with generation.{key} {recorded} and the configuration says {given}: "
                + (
                    f"conversations of several turns replay with {recorded} alone"
                    if given < recorded
                    else f"record again with it, or ask for at most {recorded}"
                )
            )


def check_replay(config: Config) -> None:
    """Refuse what no recording can answer, and a recording that nobody asks; the recording itself is not read.

    Raises:
        ConfigError: one sentence.
    """
    if not is_replayed(config):
        if config.get("recording") is not None and config.get("what_if") is None:
            raise ConfigError(
                f"{config.source_of(('recording',))}: recording is {config.get('recording')!r} and backend is live, "
                "which runs the models: set backend to replay, or leave recording out"
            )
        return
    where = f"{config.source_of(('backend',))}: backend is replay"
    if is_grouped(config) or _searches_execution(config):
        raise ConfigError(
            f"{where}, and the experiment decodes several sequences for a prompt, which overlap on the device as no "
            "recording tells: leave execution and TaskItems out, or set backend to live"
        )
    if config.get("latency") is None:
        raise ConfigError(
            f"{where}, whose seconds are those of a latency profile, and there is no latency: measure one with python "
            "-m specexp.profile and name its artifact, or write one by hand as in configs/latency"
        )


def _searches_execution(config: Config) -> bool:
    sweep = config.get("sweep") or {"space": {}, "enqueue": []}
    keys = [*sweep["space"], *(key for known in sweep["enqueue"] for key in known)]
    return any(key.partition(".")[0] == "execution" for key in keys)
