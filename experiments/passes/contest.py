"""``python -m experiments.passes.contest EXPERIMENT.yaml [--backends NAME ...] [--key value]``: compare backends.

Measures passes and steps of a pair in every backend, interleaved with plain decoding in engines' own loops.
Writes a ``latency-profile`` artifact for each backend to ``profile.to/BACKEND``, and
``<output>/<name>/{check,steps,ratios,passes}.{md,csv}`` and ``points.csv``.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from specexp.base.start import begin

    begin()

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.passes.gguf_writer import write_gguf
from experiments.passes.loops import LlamaCppLoop, LlamaDecode, OpenVinoLoop
from experiments.passes.steps import SplitSteps
from experiments.passes.tables import DECODE, Contest, report
from specexp.artifacts import ArtifactError
from specexp.base.messages import first_line
from specexp.bench.experiment import arm_specs, load_prompts, use_threads
from specexp.bench.live import LiveBackend
from specexp.bench.trainer import quiet_libraries
from specexp.config import Config, ConfigError, build_pair
from specexp.config.command import fail, run_command
from specexp.models.pair import ModelPair, load_pair
from specexp.models.smollm2 import SMOLLM2, smollm2_file
from specexp.profile.command import check_profiling, list_measurements, save_profile
from specexp.profile.measure import check_prefixes, dtype_of, measure, text_of, time_backend
from specexp.report.publish import publish, terminal, tracker_of

USAGE = "usage: python -m experiments.passes.contest EXPERIMENT.yaml [--backends NAME ...] [--dry-run] [--key value]"
BACKENDS = ("eager", "compiled", "packed", "llama.cpp", "llama.cpp Q4_1", "openvino")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    options, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    return run_command(USAGE, rest, lambda config, dry_run: _act(config, options.backends, dry_run))


def _act(config: Config, names: Sequence[str], dry_run: bool) -> int:
    arms = check_profiling(config)
    if dry_run:
        list_measurements(config, arms)
        return 0
    try:
        run(config, names)
    except ArtifactError as error:
        return fail(error, 1)
    return 0


def run(config: Config, names: Sequence[str] = BACKENDS) -> None:
    """Measure, print the tables, and write the output folder and an artifact for each backend.

    Raises:
        ConfigError: the file, its models, data or output folder is unusable, or no backend can run the pair.
        ArtifactError: an artifact cannot be written.
    """
    quiet_libraries()
    use_threads(config.generation.threads)
    pair = build_pair(config)
    section, name = config.profile, config.name
    prompts = load_prompts(config, pair).prompts[: section.prompts]
    folder, console = config.output / name, terminal()

    def tell(line: str) -> None:
        console.print(line, style="dim")

    with TemporaryDirectory(prefix="specexp-") as files:
        contest = contest_of(config, pair, names, text_of(prompts, max(section.prefixes)), Path(files), tell)
        config.save(folder)
        samples = [one for timed in contest.backends for one in timed.passes.values()]
        arms = [arm for timed in contest.backends for arm in timed.arms]
        measure(section, config.generation.seed, samples, [*arms, *contest.loops], prompts, tell)
    profiled = [save_profile(config, timed, prompts) for timed in contest.backends]
    checks = [check for one in profiled for check in one.checks]
    found = report(contest, checks, [one.artifact for one in profiled])
    tracker = tracker_of(config.tracking, config.pair, name, folder)
    publish(found, folder, tracker, console, kind="profile", config=config.to_dict())


def contest_of(
    config: Config,
    pair: ModelPair,
    names: Sequence[str],
    text: NDArray[np.int64],
    folder: Path,
    tell: Callable[[str], None] = lambda line: None,
) -> Contest:
    """Load the pair in each backend and prepare all measurements.

    Args:
        config: Configuration of the experiment.
        pair: Models of the experiment.
        names: Names of the backends.
        text: ``[p]`` tokens from whose start the prefixes are taken.
        folder: Folder for the GGUF files.
        tell: Called with a line on the progress.

    Raises:
        ConfigError: the parts do not work with the models, a prefix is too long, or no backend can run the pair.
    """
    found = Contest()
    for name in names:
        tell(f"profiling: loading {name}")
        try:
            if name == "openvino":
                found.loops.append(OpenVinoLoop(pair.target, torch.get_num_threads()))
                continue
            if name == "packed" and getattr(pair.target, "gguf_file", None) is None:
                continue
            own = replace(pair, mode=name)
            if name == "llama.cpp":
                own = _as_gguf(pair, folder)
            elif name == "llama.cpp Q4_1":
                if pair.name != SMOLLM2:
                    continue  # the embedded pair has no such file
                own = load_pair(str(smollm2_file()))  # in llama.cpp, by mode auto
            backend = LiveBackend(own)
            check_prefixes(config.profile, backend, config.checker)
            specs = [*arm_specs(config, backend)]
            timed = time_backend(config.profile, config.generation.seed, specs, backend, text)
            timed.arms = [SplitSteps(one.arm) for one in timed.arms]
        except ConfigError:
            raise
        except (ValueError, RuntimeError, ImportError) as error:
            found.left_out.append(f"{name} is left out: {first_line(error)}")
            continue
        timed.name = name
        timed.dtypes = dtype_of(pair.target), pair.draft and dtype_of(pair.draft)
        found.backends.append(timed)
        if name == "llama.cpp":
            file: Any = own.target
            found.loops.append(LlamaCppLoop(file.model, file.context_limit))
            room = text.size + max(config.get("profile.max_tokens"), 256)
            chain = LlamaDecode(LlamaCppLoop(file.model, room), file.vocab_size, text)
            timed.passes[DECODE] = replace(timed.passes["target"], timed=chain)
    if not found.backends:
        raise ConfigError(f"--backends: none of these backends can run the pair: {'; '.join(found.left_out)}")
    return found


def _as_gguf(pair: ModelPair, folder: Path) -> ModelPair:
    """Return the pair as GGUF files of the same precision, run by llama.cpp."""
    written: dict[str, str] = {}
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        if model is not None:
            written[role] = str(folder / f"{role}.gguf")
            precision: Any = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(model.dtype, "f32")
            write_gguf(model, pair.tokenizer, Path(written[role]), precision)
    # llama.cpp keeps keys and values in float16 unless set otherwise.
    cache = "float32" if pair.target.dtype == torch.float32 else "float16"
    made = load_pair(written["target"], written.get("draft"), target_dtype=cache, draft_dtype=cache)
    return replace(made, name=pair.name)


if __name__ == "__main__":
    sys.exit(main())
