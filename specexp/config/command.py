"""Steps that all commands share: reading the configuration, help, errors, and the result."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, TypeAlias

from pydantic_core import to_json
from typing_extensions import override

from specexp.base.checked import keys_below
from specexp.base.cores import usable_cores
from specexp.base.kernels import CannotRunError
from specexp.base.messages import did_you_mean, option_message, restated
from specexp.base.start import acting, masked
from specexp.config.config import SECTIONS, Config, annotated
from specexp.config.layers import COMMAND_LINE, CommandError, ConfigError, Key, entries_of, parse_overrides
from specexp.config.load import load_config, with_artifact, with_recognized_fields
from specexp.config.schema import Experiment
from specexp.models.pair import check_device
from specexp.models.sources import PairError, checked_sources, sources_of
from specexp.tracking.mode import wanted_mode

Load: TypeAlias = Callable[[str, Sequence[str]], Config]
QUIET, JSON, OPEN = "--quiet", "--json", "--open"
SHOWING = (QUIET, JSON, OPEN)
"""Options, accepted by every command, that control how the result is printed."""
DRY_RUN, _PRINT_CONFIG = "--dry-run", "--print-config"
OPTIONS = (DRY_RUN, _PRINT_CONFIG, *SHOWING)
_OF_A_SWEEP = ("minutes", "n-trials", "storage", "cold", "require-gain")
_USERS = {
    "record": ("record", "why"),
    "record.to": ("record", "what_if", "profile"),
    "profile": ("profile", "why"),
    "profile.to": ("profile",),
    "sweep": ("sweep", "record", "dashboard"),
    "verify": ("verify",),
    "fit": ("fit",),
}
"""The commands that use a section, or a key of it, which the other commands ignore."""
_TO_REPLAY = "record.to"
"""Every command reads it in a replay: the folder of the recording."""
STARTS_OVER = "run the same command again to start over"
GOES_ON = "run the same command again to continue where it stopped"
HELP = frozenset(("-h", "--help"))
_ABOUT_HELP = """--print-config prints the resolved file, each value with its source.
--quiet prints only the result and the next step, --json the whole result as one line. --open opens the report.
--help KEY explains a section, a key inside it or a part by its name: --help generation.max_new_tokens, --help Chain;
after a file it also shows the file's value. Sections of a file:"""


def fail(why: object, status: int = 2) -> int:
    """Print an error to stderr, record it in the result, and return ``status``: 2 for a user's mistake, otherwise 1."""
    current_result().error = sentence = masked(str(why))
    print(f"error: {sentence}", file=sys.stderr)
    return status


class Options(argparse.ArgumentParser):
    """An option parser that reports a mistake in one sentence, without printing the usage."""

    @override
    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        hint = did_you_mean(unknown[1], self._option_string_actions) if unknown else ""
        self.exit(fail(option_message(message) + hint))


def answered(act: Callable[[], int], after: str = STARTS_OVER) -> int:
    """Call ``act`` within :func:`answering`, and return the exit code."""
    with answering(current_result(), after) as found:
        found.exit_code = act()
    return found.exit_code


@contextmanager
def answering(found: CommandResult, after: str = STARTS_OVER) -> Iterator[CommandResult]:
    """Report an error in the block as one sentence on stderr, and set the exit code.

    The code is 2 for a user's mistake, and 1 if the command cannot continue or a file cannot be written. After SIGINT,
    SIGTERM or SIGHUP it is 130, 143 or 129, and the sentence ends with ``after``.
    """
    try:
        with acting():
            yield found
    except ConfigError as error:
        found.exit_code = fail(error)
    except CannotRunError as error:  # a model failed its self-check
        found.exit_code = fail(f"pair: {error}")
    except CommandError as error:
        found.exit_code = fail(error, 1)
    except OSError as error:
        found.exit_code = fail(f"{error.filename or 'output'} cannot be written ({error.strerror or error})", 1)
    except KeyboardInterrupt as stop:
        found.exit_code = fail(f"{str(stop) or 'interrupted'}: {after}", getattr(stop, "code", 130))


def run_command(
    usage: str,
    arguments: Sequence[str] | None,
    act: Callable[[Config, bool], int],
    short: Mapping[str, str] | None = None,
    after: str = STARTS_OVER,
    load: Load = load_config,
) -> int:
    """Read a configuration file and run a command with it.

    ``--help`` prints the usage, ``--help KEY`` explains a key, and ``--print-config`` prints the resolved file.

    Args:
        arguments: Configuration file, options and overrides; None for the arguments of the process.
        act: Called with the configuration and whether this is a dry run; returns the exit code.
        short: Dotted key for each short option, such as ``n-trials``.
        load: Reads the file, or whatever else the first argument names, with overrides.

    Returns:
        The exit code, as in :func:`answering`.
    """
    short = short or {}
    typed = sys.argv[1:] if arguments is None else arguments
    given = [_with_long_key(argument, short) for argument in typed]
    if not given:
        program = " ".join(usage.split()[1:4])
        return fail(f"{program} needs a configuration file; --help explains the command")
    if not HELP.isdisjoint(given):
        return _help(usage, given, short)
    with collected_result(given) as found, answering(found, after), _named_as_typed(typed, short):
        config = _read(given, short, usage, load)
        if _PRINT_CONFIG in given:
            return say(annotated(config), end="")
        found.exit_code = act(config, DRY_RUN in given)
        if DRY_RUN in given and found.exit_code == 0:
            found.next = found.next or "the same command without --dry-run"
    return found.exit_code


def _read(given: Sequence[str], short: Mapping[str, str], usage: str, load: Load) -> Config:
    command = "".join(usage.split()[3:4])  # after "usage: python -m"
    if given[0].startswith("--"):
        options = re.findall(r"--[a-z-]+", usage)
        near = did_you_mean(given[0], options)
        hint = near if near.startswith("; did") and given[0] not in options else ""
        raise ConfigError(f"{COMMAND_LINE}: the configuration file must come first, got {given[0]}{hint}")
    for argument in given[1:]:
        name, equals, _ = argument.partition("=")
        if equals and name in OPTIONS:
            raise ConfigError(f"{COMMAND_LINE}: {name} takes no value, got {argument}")
    overrides = [argument for argument in given[1:] if argument not in OPTIONS]
    known = {*SECTIONS, "compose"}
    # before the values are parsed: an unknown option may be a switch without a value
    for dotted in [one[2:].partition("=")[0] for one in overrides if one.startswith("--") and len(one) > 2]:
        section, dot, _ = dotted.partition(".")
        if dotted in _OF_A_SWEEP:
            raise ConfigError(f"{COMMAND_LINE}: --{dotted} is an option of python -m specexp.sweep only")
        if section not in known:
            options = [
                *OPTIONS,
                *(f"--{name}" for name in (*short, *known, *keys_below(Experiment), "data.max_prompts")),
            ]
            hint = did_you_mean(section, known) if dot else did_you_mean(f"--{dotted}", options)
            raise ConfigError(f"{COMMAND_LINE}: --{dotted} is unknown{hint}")
    values: dict[str, object] = {}
    for dotted, value in parse_overrides(overrides):
        earlier = values.setdefault(dotted, value)
        if dotted != "compose" and repr(earlier) != repr(value):
            raise ConfigError(f"{COMMAND_LINE}: --{dotted} must be given once, got {earlier!r} and {value!r}")
        if value is not None and dotted != _TO_REPLAY:
            _check_used(dotted, command)
    config, lines = with_recognized_fields(with_artifact(load(given[0], overrides)))
    if _PRINT_CONFIG not in given:
        for line in lines:
            print(line)
    if _TO_REPLAY in values and not config.is_replayed:
        _check_used(_TO_REPLAY, command)
    if "pair.draft_dtype" in values and sources_of(config.pair.target, config.pair.draft)[1] is None:
        raise config.checker.error(("pair", "draft_dtype"), " must be left out without a draft model (pair.draft)")
    return config


def _check_used(dotted: str, command: str) -> None:
    """Raise ConfigError for an override of a section that the command ignores."""
    package, _, name = command.partition(".")
    users = _USERS.get(dotted, _USERS.get(dotted.partition(".")[0], (name,)))
    if package == "specexp" and name not in users:
        commands = ", ".join(f"specexp.{name}" for name in users)
        raise ConfigError(f"{COMMAND_LINE}: --{dotted} must be left out, because it is used only by {commands}")


def _help(usage: str, given: Sequence[str], short: Mapping[str, str]) -> int:
    """Print the usage, or the explanation of the key that follows ``--help``."""
    from specexp.config.explain import explain, explain_sections

    at = next(number for number, argument in enumerate(given) if argument in HELP)
    if at + 1 == len(given):
        return say(f"{usage}\n{_ABOUT_HELP}\n{explain_sections()}")
    config = None
    if at > 0:
        try:  # an explanation is useful for a wrong file too, so its error is only a note
            config = load_config(given[0], [argument for argument in given[1:at] if argument not in OPTIONS])
        except ConfigError as error:
            print(f"note: {error}", file=sys.stderr)
    try:
        key = given[at + 1].removeprefix("--")
        return say(explain(short.get(key, key), config))
    except ConfigError as error:
        return fail(error)


@contextmanager
def _named_as_typed(typed: Sequence[str], short: Mapping[str, str]) -> Iterator[None]:
    """Name keys in a ConfigError of the block by the short options that set them, such as ``--max-prompts``."""
    options = {argument.partition("=")[0] for argument in typed}
    names = {key: f"--{name}" for name, key in short.items() if f"--{name}" in options}

    def renamed(error: ConfigError) -> ConfigError:
        sentence = str(error)
        for key, name in names.items():
            sentence = re.sub(rf"(?<![\w./-])(--)?{re.escape(key)}(?![\w/]|\.\w)", name, sentence)
        return ConfigError(sentence)

    with restated(ConfigError, renamed):
        yield


def _with_long_key(argument: str, short: Mapping[str, str]) -> str:
    name, equals, value = argument.removeprefix("--").partition("=")
    return f"--{short[name]}{equals}{value}" if argument.startswith("--") and name in short else argument


@dataclass
class CommandResult:
    """The result of a command. Its fields are the keys of the JSON that ``--json`` prints.

    Attributes:
        answer: The outcome, in one sentence.
        limits: Sentences that limit the answer, such as what was not measured or is left out.
        folder: The folder of the command's files.
        page: The file of the report.
        artifact: The folder that a deployment loads.
        summary: Figures for comparing runs.
        tables: Rows of every table, as mappings from heading to cell.
        next: The next command or step.
    """

    exit_code: int = 0
    answer: str = ""
    limits: list[str] = field(default_factory=list)
    error: str = ""
    folder: str = ""
    page: str = ""
    artifact: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    next: str = ""

    def to_json(self) -> str:
        """Return one line of JSON without empty fields. Numbers that are not finite become null."""
        known = {name: value for name, value in asdict(self).items() if value or name == "exit_code"}
        return masked(to_json(known, inf_nan_mode="null", fallback=str).decode())


_CURRENT: ContextVar[CommandResult | None] = ContextVar("current_result", default=None)


def current_result() -> CommandResult:
    """Return the result of the running command, or a new one if no command is running."""
    return _CURRENT.get() or CommandResult()


@contextmanager
def collected_result(given: Collection[str]) -> Iterator[CommandResult]:
    """Collect a command's result, then print it as selected by the options in ``given`` (see :data:`SHOWING`)."""
    found = CommandResult()
    token = _CURRENT.set(found)
    silent = QUIET in given or JSON in given  # only the result is printed; errors go to stderr
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere) if silent else nullcontext():
            yield found
    finally:
        _CURRENT.reset(token)
    if JSON in given:
        say(found.to_json())
    else:
        quietly = (found.answer, *found.limits, found.page) if QUIET in given else ()
        for line in filter(None, (*quietly, f"Next: {found.next}" if found.next else "")):
            say(line)
    if OPEN in given and found.page:
        import webbrowser

        webbrowser.open(Path(found.page).resolve().as_uri())


def say(text: str, end: str = "\n") -> int:
    """Print text and return exit code 0. The reader of a pipe may close it early, as ``head`` does."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        # the interpreter flushes stdout once more at exit, which must not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def check_here(config: Config, *written: str) -> None:
    """Raise a ConfigError if this machine lacks required cores, models or prompt files, or cannot write a folder.

    Args:
        written: Keys of the folders that the command writes in addition to ``output``.
    """
    for dotted in ("generation.threads", "execution.init_args.threads", "engine.init_args.threads"):
        check_threads(config.get(dotted, None), config.checker.error(tuple(dotted.split(".")), ""))
    if config.tracking.mode != "disabled":
        check_tracking(config)
    if not config.is_replayed:
        with restated(PairError, lambda error: config.checker.error(("pair", error.argument), f": {error}")):
            checked_sources(*(config.get(f"pair.{key}") for key in ("target", "draft", "mode")))
            if (device := config.pair.device) != "cpu":
                check_device(device)  # before transformers is imported, which takes seconds
    at = ("data", "prompts", "init_args")
    for key, value in _file_names(config.get(".".join(at), None), at):
        path = Path(value).expanduser()
        is_file_name = path.suffix != "" or value.startswith((".", "/", "~"))  # otherwise a data set's id
        if "://" not in value and is_file_name and not path.exists():
            raise config.checker.error(key, f": {value} does not exist; a file of prompts is expected")
    for dotted in ("output", *written):
        folder = config.get(dotted, None)
        if folder is not None:
            below = (config.name,) if dotted == "output" else ()
            check_writable(Path(folder, *below), config.checker.error(tuple(dotted.split(".")), ""))


def check_threads(threads: int | None, error: ConfigError) -> None:
    """Raise a ConfigError that begins with ``error`` if there are more threads than cores that may be used."""
    cores = usable_cores()
    if threads is not None and threads > cores.number:
        raise ConfigError(f"{error} must be at most {cores.number}, {cores.limit}, got {threads}")


def _file_names(value: Any, at: Key) -> Iterator[tuple[Key, str]]:
    """Yield the key and value of each argument that names a file, in a part and the parts inside it."""
    for name, item in entries_of(value):
        if name in ("path", "instances") and isinstance(item, str):
            yield (*at, name), item
        yield from _file_names(item, (*at, name))


def check_tracking(config: Config) -> None:
    """Raise a ConfigError if W&B would reject the mode, the project name or the entity name."""
    try:
        wanted_mode(config.tracking.mode)
    except ValueError as error:  # WANDB_MODE is wrong; the file's mode was checked with the file
        raise ConfigError(str(error)) from error
    for key in ("project", "entity"):
        name = config.get(f"tracking.{key}")
        if name is not None and (not name.strip() or set(name) & set("/\\#?%:")):
            why = f" must be a name without any of / \\ # ? % :, got {name!r}"
            raise config.checker.error(("tracking", key), why)


def check_writable(folder: Path, error: ConfigError) -> None:
    """Raise a ConfigError that begins with ``error`` if a folder cannot be created or written to."""
    there = next(path for path in (folder, *folder.parents, Path()) if path.exists() or path.is_symlink())
    try:
        with TemporaryDirectory(dir=there):  # checking permissions is not enough: a file system may refuse
            return
    except PermissionError:
        why = f"no permission in {there}"
    except OSError as failed:
        why = f"{there} is not a folder" if not there.is_dir() else f"{there}: {failed.strerror}"
    raise ConfigError(f"{error}: {folder} cannot be written ({why}): name another folder")
