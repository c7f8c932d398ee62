"""The live sample: a few recorded prompts that are decoded again with the models and compared with their replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from specexp.base.messages import counted, first_line
from specexp.bench.arm_spec import ArmSpec, make_arm
from specexp.bench.live import LiveBackend
from specexp.bench.record import COUNTS, PromptRecord
from specexp.config import Config, ConfigError, arms_of, build_parts
from specexp.core.contracts import Controller, TreeBuilder
from specexp.core.parts import Parts
from specexp.replay.backend import ReplayArm, ReplayBackend
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import Grade, learns
from specexp.replay.record.plan import RecordingPlan, describe_part
from specexp.report.table import Table, columns

if TYPE_CHECKING:
    from specexp.data import Prompt
    from specexp.models.pair import ModelPair
    from specexp.replay.format.recording import Recording

_FIXED = {"class_path": "Fixed"}


def sample_live(
    planned: RecordingPlan,
    pair: ModelPair,
    recording: Recording,
    prompts: Sequence[Prompt],
    decoded: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Decode prompts with each composition of :func:`compositions`, both live and from the recording.

    ``decoded`` is called after each prompt of each composition.

    Returns:
        One row per composition: ``composition``, ``fidelity``, ``prompts``, ``equal_prompts`` (number of prompts
        with equal tokens and counts), ``<count>_live`` and ``<count>_replayed`` for each count,
        ``tokens_per_step_live``, ``tokens_per_step_replayed`` and their ``relative_error``. If a composition cannot be
        replayed, its row has only ``composition`` and ``refused`` (the reason).
    """
    live = LiveBackend(pair)
    replay = ReplayBackend(recording)
    rows = []
    for name, config in compositions(planned):
        try:
            rows.append(_row(name, config, live, replay, prompts, decoded))
        except (RecordingError, ConfigError) as error:
            rows.append({"composition": name, "refused": first_line(error)})
    return rows


def compositions(planned: RecordingPlan) -> Iterator[tuple[str, Config]]:
    """Yield the configured composition and arms, then the drafter with each builder of the coverage and no controller.

    A learning drafter replays exactly with the coverage's builders, so it is also sampled with trees of intermediate
    sizes.
    """
    config = planned.config
    if config.get("drafter") is None:
        return
    controlled = config.get("controller") != config.with_overrides({"controller": _FIXED}).get("controller")
    controller = f", {describe_part(config.get('controller'), Controller)}" if controlled else ""
    yield describe_part(config.get("builder")) + controller, config
    yield from _arms(config)
    others = {"controller": _FIXED, "verifier": planned.verifier_section}
    for given in planned.covered_by:
        if given != config.get("builder") or controlled:
            yield describe_part(given), config.with_overrides({"builder": given, **others})
    if learns(planned.drafter()):
        for paths, name in trees_between(planned.coverage):
            tree = {"class_path": "StaticTree", "init_args": {"rank_paths": paths}}
            yield name, config.with_overrides({"builder": tree, **others})


def _arms(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield the arms that draft in specexp's own loop, except any that equal the configured composition."""
    own = {part: config.get(part) for part in Parts._fields}
    for arm in arms_of(config) if config.get("arms") else ():
        drafts = arm.reference is None and arm.config.get("drafter") is not None
        if drafts and {part: arm.config.get(part) for part in Parts._fields} != own:
            yield f"arm {arm.title}", arm.config


def trees_between(builders: Sequence[TreeBuilder]) -> Iterator[tuple[list[list[int]], str]]:
    """Yield trees of intermediate sizes (rank paths and name), one between each fixed tree and the next smaller one.

    Each keeps the nodes of the larger tree that have the lowest ranks and are closest to the root.
    """
    shapes = [builder.shape for builder in builders if builder.shape is not None]
    below = 1
    for shape in sorted(shapes, key=lambda one: one.num_nodes):
        nodes = round(sqrt(below * shape.num_nodes))
        if below < nodes < shape.num_nodes:
            ordered = sorted(shape.rank_paths[1:], key=lambda path: (sum(path) + len(path), len(path), path))
            paths = [list(path) for path in ordered[:nodes]]
            yield paths, f"{nodes} of the {counted(shape.num_nodes, 'node')}, not recorded"
        below = shape.num_nodes


def to_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows of a live sample as a table."""
    compared = [row for row in rows if "refused" not in row]
    heads = "replayed against live | prompts | equal | steps live | replayed | tokens a step live | replayed"
    keys = ["composition", "prompts", "equal_prompts", "steps_live", "steps_replayed", "tokens_per_step_live"]
    keys += ["tokens_per_step_replayed", "relative_error", "fidelity"]
    cells = [[row[key] for key in keys] for row in compared]
    notes = [f"{row['composition']}: {row['refused']}" for row in rows if "refused" in row]
    notes += [
        f"{row['composition']}: {row['prompts'] - row['equal_prompts']} of {counted(row['prompts'], 'prompt')} differ "
        "from the live run although the replay is exact: passes of another size round differently, which can flip near "
        "ties of a 16-bit model"
        for row in compared
        if row["fidelity"] == Grade.EXACT.value and row["equal_prompts"] < row["prompts"]
    ]
    return Table(
        "Live sample: replay and live decoding compared",
        columns(f"{heads} | difference:.2% | fidelity"),
        cells,
        notes,
    )


def _row(
    name: str,
    config: Config,
    live: LiveBackend,
    replay: ReplayBackend,
    prompts: Sequence[Prompt],
    decoded: Callable[[], None],
) -> dict[str, Any]:
    try:
        latency = config.latency
    except ConfigError:  # the profile's artifact has not been measured yet
        latency = None
        config = config.with_overrides({"latency": None})
    replayed, decoding = (
        make_arm(ArmSpec(name, config.generation, build_parts(config, backend.draft), latency=latency), backend)
        for backend in (replay, live)
    )
    assert isinstance(replayed, ReplayArm)
    if replayed.fidelity.grade is Grade.MODELLED and latency is None:
        raise RecordingError(f"{replayed.fidelity.why}: set latency to a profile to replay it")
    records: dict[str, list[PromptRecord]] = {"live": [], "replayed": []}
    for arm in (decoding, replayed):
        arm.reset()
    for prompt in prompts:
        records["live"].append(decoding.decode(prompt))
        records["replayed"].append(replayed.decode(prompt))
        decoded()
    row: dict[str, Any] = {"composition": name, "fidelity": str(replayed.fidelity), "prompts": len(prompts)}
    answers = {side: [_counts(one) for one in found] for side, found in records.items()}
    row["equal_prompts"] = sum(one == other for one, other in zip(answers["live"], answers["replayed"], strict=True))
    for side, found in records.items():
        row |= {f"{count}_{side}": sum(getattr(one, count) for one in found) for count in COUNTS}
        row[f"tokens_{side}"] = sum(one.new_tokens for one in found)
        row[f"tokens_per_step_{side}"] = row[f"tokens_{side}"] / row[f"steps_{side}"]
    row["relative_error"] = row["tokens_per_step_replayed"] / row["tokens_per_step_live"] - 1
    return row


def _counts(record: PromptRecord) -> tuple[Any, ...]:
    return (record.token_ids, *(getattr(record, count) for count in COUNTS))
