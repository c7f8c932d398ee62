"""What the commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from specexp.config.config import SECTIONS, Config
from specexp.config.errors import ConfigError
from specexp.config.files import COMMAND_LINE, parse_overrides
from specexp.config.from_artifact import with_artifact
from specexp.config.load import load_config
from specexp.config.recognised import with_recognised_fields
from specexp.config.resolved import annotated
from specexp.config.schema import Experiment
from specexp.config.told import SHOWING, say, telling, told
from specexp.core.checked import keys_below
from specexp.core.messages import did_you_mean
from specexp.core.start import acting, masked

DRY_RUN = "--dry-run"
_PRINT_CONFIG = "--print-config"
_OF_A_SWEEP = ("n-trials", "storage", "confirm-again", "cold", "require-gain")
OPTIONS = (DRY_RUN, _PRINT_CONFIG, *SHOWING)
STARTS_OVER = "the same command starts over"
GOES_ON = "the same command goes on where it stopped"
HELP = frozenset(("-h", "--help"))
_ABOUT_HELP = """--print-config prints the resolved file, each value with who set it.
--quiet says the answer and what to do next, --json all that came out in one line, --open opens the report's page.
--help KEY explains a section, a key inside it or a part by its name: --help generation.max_new_tokens, --help Chain;
after a file it tells what the file has there. Sections of a file:"""


def fail(why: object, status: int = 2) -> int:
    """Tell what went wrong, in one sentence on stderr.

    Args:
        why: The error or the sentence.
        status: The exit code: 2 for a mistake of the user, 1 for what went wrong without one.

    Returns:
        ``status``.
    """
    told().error = said = masked(str(why))
    print(f"error: {said}", file=sys.stderr)
    return status


def answered(act: Callable[[], int], after: str = STARTS_OVER) -> int:
    """Act, and tell mistakes and what ended the process in one sentence on stderr.

    Args:
        act: Does the command's work; returns the exit code.
        after: What the same command does after an interrupt.

    Returns:
        The exit code: of ``act``, 2 for a mistake of the user, 1 where something cannot be written, 130, 143 or 129
        after SIGINT, SIGTERM or SIGHUP.
    """
    try:
        with acting():
            return act()
    except ConfigError as error:
        return fail(error)
    except OSError as error:
        return fail(f"{error.filename or 'output'} cannot be written ({error.strerror or error})", 1)
    except KeyboardInterrupt as stop:
        return fail(f"{str(stop) or 'interrupted'}: {after}", getattr(stop, "code", 130))


def run_command(
    usage: str,
    arguments: Sequence[str] | None,
    act: Callable[[Config, bool], int],
    short: Mapping[str, str] | None = None,
    after: str = STARTS_OVER,
) -> int:
    """Read a configuration file, act on it, and tell mistakes in one sentence on stderr.

    ``--help`` prints the usage, ``--help KEY`` explains a key, ``--print-config`` prints the resolved file.

    Args:
        usage: What is printed for ``--help``, and where no file is given.
        arguments: File, ``--dry-run`` and overrides; the process's own if None.
        act: What is done with the configuration, told whether it is a dry run; returns the exit code.
        short: Dotted keys by the short option that means them, such as ``n-trials``.
        after: What the same command does after an interrupt.

    Returns:
        The exit code, as :func:`answered`.
    """
    short = short or {}
    given = [_long(argument, short) for argument in (sys.argv[1:] if arguments is None else arguments)]
    if not given or not HELP.isdisjoint(given):
        return _help(usage, given, short)
    with telling(given) as found:
        found.exit_code = _read_and_act(given, act, short, after)
        if DRY_RUN in given and found.exit_code == 0:
            found.next = "the same command without --dry-run"
    return found.exit_code


def _read_and_act(
    given: Sequence[str], act: Callable[[Config, bool], int], short: Mapping[str, str], after: str
) -> int:
    """Read the file and the overrides, and act on them; returns the exit code."""
    try:
        if given[0].startswith("--"):
            raise ConfigError(
                f"command line: {given[0]} stands where the configuration file is expected, first"
            )
        for argument in given[1:]:
            name, equals, _ = argument.partition("=")
            meant = get_close_matches(name.replace("_", "-").lower(), OPTIONS, n=1, cutoff=0.9)
            if meant and name not in OPTIONS:
                raise ConfigError(f"{COMMAND_LINE}: unknown option {name}; did you mean {meant[0]}?")
            if equals and name in OPTIONS:
                raise ConfigError(
                    f"{COMMAND_LINE}: {argument} gives {name} a value, and it takes none; write {name}"
                )
        overrides = [argument for argument in given[1:] if argument not in OPTIONS]
        _check_sections(overrides, short)
        config = load_config(given[0], overrides)
        config, recognised = with_recognised_fields(with_artifact(config))
        if _PRINT_CONFIG in given:
            return say(annotated(config), end="")
        for line in recognised:
            print(line)
    except ConfigError as error:
        return fail(error)
    return answered(lambda: act(config, DRY_RUN in given), after)


def _help(usage: str, given: Sequence[str], short: Mapping[str, str]) -> int:
    """Print the usage, or what the key after ``--help`` means."""
    from specexp.config.explain import explain, explain_sections

    at = next((number for number, argument in enumerate(given) if argument in HELP), len(given))
    if at + 1 >= len(given):
        say(f"{usage}\n{_ABOUT_HELP}\n{explain_sections()}")
        return 0 if given else 2
    config = None
    if at > 0:
        try:
            config = load_config(given[0], [argument for argument in given[1:at] if argument not in OPTIONS])
        except ConfigError as error:
            print(f"note: {error}", file=sys.stderr)
    try:
        key = given[at + 1].removeprefix("--")
        return say(explain(short.get(key, key), config))
    except ConfigError as error:
        return fail(error)


def _check_sections(overrides: Sequence[str], short: Mapping[str, str]) -> None:
    """Refuse an override given twice, or of no section.

    What is meant may be an option of the command, or lie inside a section.
    """
    for dotted in [one[2:].partition("=")[0] for one in overrides if one.startswith("--") and len(one) > 2]:
        known = {*SECTIONS, "compose"}
        if dotted in _OF_A_SWEEP:
            raise ConfigError(f"{COMMAND_LINE}: --{dotted} is an option of python -m specexp.sweep alone")
        if dotted.partition(".")[0] not in known:
            near = did_you_mean(
                f"--{dotted}", [f"--{name}" for name in (*short, *known, *keys_below(Experiment))]
            )
            raise ConfigError(f"{COMMAND_LINE}: unknown key {dotted!r}{near}")
    given: dict[str, object] = {}
    for dotted, value in parse_overrides(overrides):
        earlier = given.setdefault(dotted, value)
        if dotted != "compose" and repr(earlier) != repr(value):
            raise ConfigError(
                f"{COMMAND_LINE}: --{dotted} is given twice, {earlier!r} and {value!r}; give it once"
            )


def _long(argument: str, short: Mapping[str, str]) -> str:
    name, equals, value = argument.removeprefix("--").partition("=")
    return f"--{short[name]}{equals}{value}" if argument.startswith("--") and name in short else argument
