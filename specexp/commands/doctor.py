"""``python -m specexp.doctor``: reports what works on this machine, what is slow, and how to improve it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement

from specexp.artifacts.environment import device_name, high_load
from specexp.base.cores import usable_cores
from specexp.base.kernels import CannotCompileError, CannotRunError, cache_folder
from specexp.base.messages import counted, first_line
from specexp.config.command import Options, fail
from specexp.models.pair import load_pair
from specexp.models.smollm2 import smollm2_file
from specexp.models.sources import PairError, check_reachable, check_source, sources_of
from specexp.tracking.mode import logged_in, resolve_mode

_EXTRAS = {
    "llama-cpp": "llama.cpp for GGUF files, which PyTorch runs otherwise",
    "llama-server": "llama.cpp's server as an engine to compare with",
    "openvino": "OpenVINO GenAI as an engine to compare with",
    "serve": "an OpenAI-compatible server",
    "cluster": "studies on many machines",
    "dashboard": "W&B workspaces and optuna-dashboard",
}
_LITTLE_DISK = 2e9  # bytes
_RECORDS = ("records.jsonl", "confirm.jsonl")  # of a run, of a study


@dataclass(frozen=True)
class Diagnosis:
    """One finding about this machine.

    Attributes:
        verdict: ``note`` if something is slow or unavailable, ``problem`` if specexp cannot run.
    """

    topic: str
    finding: str
    verdict: Literal["ok", "note", "problem"] = "ok"
    advice: str = ""


def packages() -> Iterator[Diagnosis]:
    """Check Python, specexp, its dependencies and its extras."""
    yield Diagnosis("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    try:
        needed = [Requirement(line) for line in requires("specexp") or ()]
        yield Diagnosis("specexp", version("specexp"))
    except PackageNotFoundError:
        yield Diagnosis("specexp", "not installed", "problem", "pip install -e . in its folder")
        return
    installed: list[str] = []
    for one in needed:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue  # needed only on another Python or system, or for an extra
        found = _version(one.name)
        if found is None or not one.specifier.contains(found, prereleases=True):
            has = "is not installed" if found is None else f"{found} is installed"
            yield Diagnosis(one.name, f"{has}, but {one} is needed", "problem", f"pip install '{one}'")
        else:
            installed.append(f"{one.name} {found}")
    yield Diagnosis("packages", ", ".join(installed))
    for extra, feature in _EXTRAS.items():
        names = [one.name for one in needed if one.marker and f'extra == "{extra}"' in str(one.marker)]
        missing = ", ".join(name for name in names if _version(name) is None)
        if missing:
            advice = f"pip install 'specexp[{extra}]'"
            yield Diagnosis(extra, f"not installed ({missing}): {feature}", "note", advice)
        elif names:
            yield Diagnosis(extra, ", ".join(f"{name} {_version(name)}" for name in names))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor() -> Iterator[Diagnosis]:
    """Check the processor's cores, instructions and load."""
    cores = usable_cores()
    why = f" ({cores.limit})" if cores.number < (os.cpu_count() or 1) else ""
    yield Diagnosis("processor", f"{device_name('cpu')}, {cores.number} of {os.cpu_count()} cores usable{why}")
    if not (set_threads := os.environ.get("OMP_NUM_THREADS", "1")).replace(",", "").isdecimal():
        advice = "set it to a number"
        yield Diagnosis("threads", f"OMP_NUM_THREADS is {set_threads!r}, which torch ignores", "note", advice)
    if load := high_load():
        finding = f"{load:.1f} processes were running on average in the last minute"
        yield Diagnosis("load", finding, "note", "measure times only while no other program runs")


def memory() -> Iterator[Diagnosis]:
    """Check the free memory, and the disk space for results and temporary files."""
    known = psutil.virtual_memory()
    yield Diagnosis("memory", f"{_giga(known.available)} of {_giga(known.total)} free")
    folders = {"results": Path.cwd(), "temporary files": Path(os.environ.get("TMPDIR", "/tmp"))}
    for use, folder in folders.items():
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        finding = f"{_giga(free)} free in {folder} ({use})"
        if not os.access(folder, os.W_OK):
            yield Diagnosis("disk", f"{folder} ({use}) cannot be written", "problem", "use another folder")
        elif free < _LITTLE_DISK:
            yield Diagnosis("disk", finding, "note", "recordings may not fit")
        else:
            yield Diagnosis("disk", finding)


def _giga(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def devices() -> Iterator[Diagnosis]:
    """Check which devices torch can use."""
    import torch

    threads, cores = torch.get_num_threads(), usable_cores().number
    if threads < cores:
        advice = "set OMP_NUM_THREADS or generation.threads"
        yield Diagnosis("threads", f"torch uses {threads} of {cores} cores", "note", advice)
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            yield Diagnosis(f"cuda:{number}", f"{about.name}, {_giga(about.total_memory)}")
    elif shutil.which("nvidia-smi"):  # there is a driver, but torch does not use it
        built = torch.version.cuda or "no CUDA"
        finding = f"an NVIDIA driver is installed, but torch {torch.__version__}, built for {built}, finds no GPU"
        advice = "install torch for your CUDA version (pytorch.org, Get started)"
        yield Diagnosis("cuda", finding, "note", advice)
    elif torch.backends.mps.is_available():
        yield Diagnosis("mps", "Apple's GPU", "note", "specexp was never measured on it; --pair.device mps uses it")
    else:
        yield Diagnosis("gpu", "none found; models run on the CPU (pair.device cpu)")


def native() -> Iterator[Diagnosis]:
    """Run a small model in each installed library of native code, in a child process."""
    from specexp.engines.openvino import death_of_openvino
    from specexp.models.gguf import why_no_llama_cpp

    for extra, distribution, check in (
        ("llama-cpp", "llama-cpp-python", why_no_llama_cpp),
        ("openvino", "openvino-genai", death_of_openvino),
    ):
        if _version(distribution) is not None and (death := check()):
            yield Diagnosis(extra, death, "note", f"specexp works without it; or install another {distribution}")


def compiled() -> Iterator[Diagnosis]:
    """Compile the passes of the embedded target model."""
    from specexp.models.architectures import FAMILIES
    from specexp.models.compiled import CompiledModel
    from specexp.models.llama_weights import describe_products

    try:
        kernels = CompiledModel(load_pair("stdlib").target)._kernels
    except CannotCompileError as error:
        advice = "models run with their own code instead"
        yield Diagnosis("compiled passes", str(error), "note", advice)
        return
    names = ", ".join(family.name for family in FAMILIES.values())
    finding = f"work for {names}; other models run by their own code; {describe_products(kernels)}"
    yield Diagnosis("compiled passes", finding)


def speculation() -> Iterator[Diagnosis]:
    """Measure the embedded pair for a few seconds, and apply the rule of thumb for when drafting pays off."""
    from specexp.profile.roofline import verdict
    from specexp.profile.rule import break_even, measure_quickly, payoff

    profile, limits, acceptance = measure_quickly(load_pair("stdlib"))
    found, pays = [], []
    for word, chain in (("chain", True), ("tree", False)):
        best = payoff(profile, acceptance, chain=chain)
        least = break_even(profile, chain=chain)
        gain = f"the best {word} brings {best.speedup:.1f}x ({counted(best.nodes, 'node')})"
        found.append(gain if best.nodes else f"no {word} pays")
        pays.append(f"a {word} {'never' if least is None else f'from {100 * least:.0f} %'}")
    finding = (
        f"the embedded pair decodes plainly {1 / profile.step_seconds(1):,.0f} tokens/s, "
        f"{100 * acceptance:.0f} % of its draft model's tokens are accepted; modelled for this pair alone: "
        f"{' and '.join(found)}; drafts from the text itself, and other models, are measured by a study"
    )
    yield Diagnosis("rows", f"on the embedded pair, {verdict(profile, limits)}")
    yield Diagnosis("speculation", finding, advice=f"acceptance that brings 1.1x: {', '.join(pays)}")


def services() -> Iterator[Diagnosis]:
    """Check the W&B mode, and the caches for models and compiled passes."""
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    mode = resolve_mode()
    user = "logged in" if logged_in() else "not logged in"
    if mode == "online":
        yield Diagnosis("wandb", f"runs are {mode}; {user}")
    else:
        advice = "run wandb login to upload runs; each command prints how to upload its run later"
        yield Diagnosis("wandb", f"runs are {mode}; {user}", "note", advice)
    offline = "; HF_HUB_OFFLINE is set, so models are not downloaded" if HF_HUB_OFFLINE else ""
    yield _cache("hub", Path(HF_HUB_CACHE), f"models are cached in {HF_HUB_CACHE}{offline}", "HF_HOME")
    file, folder = smollm2_file(), cache_folder("kernels")
    kept = f"kept in {file}" if file.is_file() else "not fetched yet: 93 MB at its first use"
    yield _cache("smollm2", file.parent, kept, "XDG_CACHE_HOME")
    yield _cache("kernels", folder, f"{len(list(folder.glob('*.so')))} compiled in {folder}", "XDG_CACHE_HOME")


def _cache(topic: str, folder: Path, finding: str, variable: str) -> Diagnosis:
    above = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    if above.is_dir() and os.access(above, os.W_OK):
        return Diagnosis(topic, finding)
    advice = f"set {variable} to a writable folder, or every process does the work again"
    return Diagnosis(topic, f"{folder} cannot be written", "note", advice)


def acceptance(file: Path) -> Iterator[Diagnosis]:
    """Judge the drafts in a run's records by how often they are accepted; raises ValueError if these are damaged."""
    from specexp.bench.record import read_records
    from specexp.bench.signatures import likely_causes
    from specexp.report.comparison import acceptance_table

    records = read_records(file)
    table, causes = acceptance_table(records), likely_causes(records)
    for row in () if table is None else table.records():
        arm = str(row.pop("arm"))
        shares = [f"{100 * float(share):.0f} %" for name, share in row.items() if name != "alpha" and share is not None]
        finding = f"accepted by position: {', '.join(shares)}"
        yield Diagnosis(arm, finding, "note" if arm in causes else "ok", causes.get(arm, ""))
    with suppress(OSError, ValueError, KeyError):  # the model was moved, or is only on the hub
        import yaml
        from transformers import AutoConfig

        from specexp.core.latency import experts_sentence

        target = yaml.safe_load(file.with_name("config.yaml").read_text(encoding="utf-8"))["pair"]["target"]
        sizes = AutoConfig.from_pretrained(target, local_files_only=True).get_text_config().to_dict()
        if experts := experts_sentence(sizes):
            yield Diagnosis("experts", experts)


def model(source: str) -> Iterator[Diagnosis]:
    """Judge a model by its configuration; raises ValueError if it cannot be found."""
    found, _ = sources_of(source)
    check_source("model", found)  # before torch is imported, which takes seconds
    check_reachable("model", found)
    from specexp.models.architectures import check_model

    try:
        check_model(load_pair(source, mode="eager", weights=False).target)
        yield Diagnosis("model", f"{source} has compiled passes")
    except PairError as error:
        if isinstance(error.__cause__, OSError):  # the hub has no such model
            raise
        yield Diagnosis("model", str(error), "problem")
    except CannotCompileError as error:
        yield Diagnosis("model", f"{source} runs in mode eager, since {error}", "note")


CHECKS = (packages, processor, memory, devices, native, compiled, speculation, services)
"""All checks, in the order in which they are printed."""


def examine() -> Iterator[Diagnosis]:
    """Yield all findings. Stop if a package is missing, because later checks would import it."""
    for check in CHECKS:
        problem = False  # a missing package ends the checks, but a full disk does not
        if check in (devices, native, compiled, speculation):  # these import torch, compile or decode
            print(f"{(check.__doc__ or '').partition('.')[0]} ...", file=sys.stderr, flush=True)
        try:
            for diagnosis in check():
                problem |= diagnosis.verdict == "problem" and diagnosis.topic != "disk"
                yield diagnosis
        except CannotRunError as error:
            yield Diagnosis("self-check", f"the embedded pair: {error}", "problem")
        if problem:
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code: 0, 1 if a problem keeps specexp from working, 2 for a wrong argument."""
    parser = Options(
        prog="python -m specexp.doctor",
        description="Show which features of specexp work on this machine, what is slow, and how to improve it. "
        "The output is not sent anywhere; paste it into a bug report.",
    )
    judged = "judge instead the drafts of this run's folder, by acceptance, or this model, by its configuration"
    parser.add_argument("run", nargs="?", metavar="RUN or MODEL", help=judged)
    parser.add_argument("--json", action="store_true", help="print one line of JSON per finding")
    given = parser.parse_args(arguments)
    failed = False
    found: Iterable[Diagnosis] = examine()
    if given.run is not None:
        records = next((one for name in _RECORDS if (one := Path(given.run, name)).is_file()), None)
        if records is None and Path(given.run).is_dir() and not Path(given.run, "config.json").is_file():
            names = " or ".join(_RECORDS)
            return fail(f"{given.run} has no {names}: name a folder that specexp.run or sweep wrote, or a model")
        try:
            found = [*(model(given.run) if records is None else acceptance(records))]
        except (OSError, ValueError) as error:
            return fail(first_line(error))
    for diagnosis in found:
        failed |= diagnosis.verdict == "problem"
        mark = {"ok": "  ", "note": "- ", "problem": "! "}[diagnosis.verdict]
        line = f"{mark}{diagnosis.topic}: {diagnosis.finding}"
        line += f"\n    {diagnosis.advice}" if diagnosis.advice else ""
        print(json.dumps(asdict(diagnosis)) if given.json else line, flush=True)
    if not given.json:
        fix = "fix the lines that begin with !"
        print(f"Next: {fix if failed else 'python -m specexp.init my-study --help'}")
    return int(failed)
