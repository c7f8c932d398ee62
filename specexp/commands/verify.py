"""``python -m specexp.verify CONFIG.yaml [--key value]``: tests whether every composition in a file is lossless.

Writes ``<output>/verify/<name>/{config.yaml,environment.json,report.md,report.json}`` and pictures; a later run
with the same name replaces them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from specexp.artifacts import ArtifactError, read_artifact
from specexp.artifacts.store import BEST, resolve
from specexp.bench.experiment import check_experiment, rehearse
from specexp.commands.engine_study import STUDIED
from specexp.config import Config, ConfigError, check_rows, missing_engine
from specexp.config.command import Options, check_here, current_result, fail, run_command
from specexp.config.named_artifacts import local
from specexp.config.next_step import artifact_again, command_line, experiment_again, model_options, trust_options
from specexp.models.sources import sources_of
from specexp.report.publish import is_study
from specexp.servers.options import ENDPOINT, watches_server

USAGE = """usage: python -m specexp.verify CONFIG.yaml [--dry-run] [--key value ...]
       python -m specexp.verify ARTIFACT --for ENGINE [--prompts FILE] [--dry-run] [--key value ...]
       python -m specexp.verify --endpoint URL [--plain URL] [--plain-body JSON] [--help]
       python -m specexp.verify --endpoint URL --concurrency N

Tests whether the compositions of an experiment leave the target's output unchanged on its models and device.
Greedy and KeyedSampling must give the tokens of plain decoding and, on toy targets, the known output. Verifiers that
sample must give the target's distribution, for three consecutive tokens on toy targets and for the first tokens on the
configured models. The toy samples suffice to find a deviation of verify.total_variation (0.05) with a power of 95 %.
The target is float32 unless the file sets another dtype. Exit code 0: no deviation was found and the stated one is
excluded, or the verifier is labeled lossy; 1: a claim does not hold; 2: the file is wrong; 3: no deviation was found,
but the stated one is not excluded.
With --for, an engine (vllm, llama-cpp, openvino) is started with the artifact's settings and without, and its answers
are compared at temperature 0: to 20 prompts of the study's confirmation, or to those of --prompts. Other options are
--max-prompts, --max-tokens and, for vLLM in another environment, --engine.init_args.python.
With --endpoint, a server's answers with and without speculation are compared instead, at temperature 0. With
--concurrency, its answers among N other requests are compared with its answers to lone requests.
--dry-run checks the file and lists the tests; any other --dotted.key overrides the file,
e.g. --verify.total_variation 0.02 --data.max_prompts 8 --verifier.init_args.temperature 0.3."""
_FOR = "--for"
_SHORT = {"prompts": "data.prompts", "max-prompts": "data.max_prompts", "max-tokens": "generation.max_new_tokens"}
"""The options of ``--for``, with the names that they have with ``--endpoint``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if watches_server(given):
        from specexp.servers.verify import verify_endpoint

        return verify_endpoint(given)
    if given and given[0].partition("=")[0] in ("--plain", "--plain-body"):
        return fail(f"{given[0].partition('=')[0]} needs {ENDPOINT} URL, the server with speculation")
    parser = Options(prog="python -m specexp.verify", add_help=False, allow_abbrev=False)
    parser.add_argument(_FOR, choices=tuple(STUDIED), dest="engine")
    found, rest = parser.parse_known_args(given)
    if found.engine is None:
        return run_command(USAGE, rest, _act)
    if not rest or rest[0].startswith("-"):
        return fail(f"{_FOR} {found.engine} needs an artifact: python -m specexp.verify ARTIFACT {_FOR} {found.engine}")
    from specexp.commands.engine_artifact import engine_experiment

    return run_command(USAGE, rest, _act, _SHORT, load=partial(engine_experiment, found.engine))


def _act(config: Config, dry_run: bool) -> int:
    check_experiment(config)
    check_here(config)
    for remark in check_rows(config, "verify.prompts"):
        print(remark)
    if config.get("engine") is not None:
        return _act_on_engine(config, dry_run)
    if dry_run:
        from specexp.verify.run import check_owner, claims_of, our_arms

        kept, skipped = our_arms(config)
        check_owner(config, rehearse(kept).pair)
        for claim in claims_of(kept):
            print(f"{claim.arm.title}: {', '.join(claim.checks)}")
        if skipped:
            print(f"not verified, because other programs decode them: {', '.join(skipped)}")
        return 0
    from specexp.verify.run import run

    found = run(config)
    if not found.passed:
        current_result().next = command_line("doctor", why="attach its output and the report to an issue")
    elif config.artifact and _is_best(config.artifact):
        options = [*model_options(config.pair), *trust_options(config.invocation.packages)]
        current_result().next = command_line("serve", config.artifact, *options, "--port", 8000)
    else:
        artifact = artifact_again(config.artifact, config.invocation.packages) if config.artifact else {}
        taken = is_study(Path(config.output, config.name))
        name = {"name": f"{config.name}-artifact"} if taken else {}
        again = experiment_again(config.invocation, {**artifact, **name})
        current_result().next = command_line("run", *again, why="measures its speed")
    return (0 if found.known else 3) if found.passed else 1


def _act_on_engine(config: Config, dry_run: bool) -> int:
    if missing := missing_engine(config):
        if config.artifact:
            from specexp.commands.engine_artifact import program_options

            program = shlex.join(program_options(config))
            missing += program and f" Its study was measured with another program: repeat with {program}"
        raise ConfigError(missing)
    from specexp.verify.engine import engine_to_verify, rehearse_engine, verify_engine

    engine = engine_to_verify(config)
    if dry_run:
        rehearse_engine(engine, config)
        print(f"{type(engine).__name__}: tokens with speculation are compared with tokens without it")
        return 0
    report = verify_engine(config)
    if config.artifact and not report.exit_code:
        from specexp.commands.engine_artifact import export_options

        name, artifact = engine.exported_as, read_artifact(local(config.artifact))
        options = export_options(name, artifact, sources_of(config.pair.target, config.pair.draft)[1])
        words = [word for key, value in options.items() for word in (f"--{key}", value)]
        current_result().next = command_line("export", config.artifact, "--to", name, *words)
    return report.exit_code


def _is_best(reference: str) -> bool:
    """Return whether an artifact is the version to deploy, which the alias ``best`` of its folder names."""
    version = resolve(local(reference))
    try:
        return resolve(version.parent / BEST) == version
    except ArtifactError:
        return False
