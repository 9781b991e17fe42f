"""The list of commands, and the handling of a user's mistakes.

The module of a command is imported when the command is called, so that a user waits for no other module. The help of
every command in the list of commands is therefore written here, and repeats the first line of the command's docstring.

Results go to stdout, progress and errors to stderr. A mistake of the user is a single line and exit code 2; a plan with
a failing check is exit code 1.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    Token,
    UnknownOptionError,
    UnusedCliTokensError,
)

from fulcrum.errors import FulcrumError, ParameterError, check_known
from fulcrum.version import package_version


def _example(words: str) -> str:
    return f"Example: fulcrum {words}"


app = App(
    name="fulcrum",
    help="Topology-aware differential privacy for hierarchical federated learning.",
    version=package_version,
    result_action="return_value",
)
app.command(
    "fulcrum.cli.plan_commands.exposure_command:exposure",
    name="exposure",
    help="Show the exposure of each region, and the noise that a uniform multiplier wastes.",
    help_epilogue=_example("exposure hospitals.csv"),
)
app.command(
    "fulcrum.cli.plan_commands.floor:floor",
    name="floor",
    help="Show the information floor, the information about a silo without any release, and the worth of a bound.",
    help_epilogue=_example("floor hospitals.csv --information 2.2"),
)
app.command(
    "fulcrum.cli.plan_commands.plans:plan_command",
    name="plan",
    help="Compute how much noise each silo must add.",
    help_epilogue=_example("plan hospitals.csv --rounds 10 --epsilon 1 -o plan.json"),
)
app.command(
    "fulcrum.cli.plan_commands.plans:verify_command",
    name="verify",
    help="Recompute every number of a plan from its multipliers and roster, without the solver.",
    help_epilogue=_example("verify plan.json --federation hospitals.csv"),
)
app.command(
    "fulcrum.cli.plan_commands.plans:diff",
    name="diff",
    help="Show the differences between two plans, and the affected silos.",
    help_epilogue=_example("diff plan.json next.json"),
)
app.command(
    "fulcrum.cli.plan_commands.plans:export",
    name="export",
    help="Write a plan as a table (csv), or as settings for Flower or NVIDIA FLARE.",
    help_epilogue=_example("export plan.json --to csv"),
)
app.command(
    "fulcrum.cli.plan_commands.read_settings:read_settings",
    name="read-settings",
    help="Tell the promise of present settings: unit, sensitivity, composition, and epsilon for each observer.",
    help_epilogue=_example("read-settings my_flower_app --rounds 10"),
)
app.command(
    "fulcrum.cli.plan_commands.compare:compare_command",
    name="compare",
    help="Compare every allocation at the same target, and train all of them with --train.",
    help_epilogue=_example("compare hospitals.csv --rounds 10 --epsilon 1 --train"),
)
app.command(
    "fulcrum.cli.plan_commands.design_command:design_command",
    name="design",
    help="Choose the regions of least noise at a target, with the proven gap to the optimum.",
    help_epilogue=_example("design hospitals.csv --most 20 --least 3 --rounds 10 --epsilon 1 -o proposed.csv"),
)
app.command(
    "fulcrum.cli.run_commands.training:train_command",
    name="train",
    help="Train a plan in process, with seeded noise: for research, not for deployment.",
    help_epilogue=_example("train plan.json --data digits -o run"),
)
app.command(
    "fulcrum.cli.run_commands.training:embed",
    name="embed",
    help="Turn images or texts into features by a frozen public model, for `fulcrum train --data`.",
    help_epilogue=_example("embed photos -o photos.npz"),
)
app.command(
    "fulcrum.cli.run_commands.real_data:data_command",
    name="data",
    help="Read the tables of a real federation, check them, and show its regions; -o writes the federation.",
    help_epilogue=_example("data eicu --from tables -o eicu.csv"),
)
app.command(
    "fulcrum.cli.run_commands.tune:tune_command",
    name="tune",
    help="Try recipe, clip, rate, rounds, prior and input scaling on public data, for a plan with the same promise.",
    help_epilogue=_example("tune plan.json --data digits -o next.json"),
)
app.command(
    "fulcrum.cli.run_commands.audit:audit_command",
    name="audit",
    help="Attack a plan as each observer would, and put the measured beside the claimed epsilon.",
    help_epilogue=_example("audit plan.json -o audit"),
)
app.command(
    "fulcrum.cli.plan_commands.report:report_command",
    name="report",
    help="Write a plan as one HTML file to read, print and sign; the file needs no network.",
    help_epilogue=_example("report plan.json --run run -o report.html"),
)
app.command(
    "fulcrum.cli.plan_commands.page:serve_command",
    name="serve",
    help="Serve a page for changes to a federation, with the new plan at once; end the server with Ctrl-C.",
    help_epilogue=_example("serve hospitals.csv --open"),
)
app.command(
    "fulcrum.cli.plan_commands.silos:keygen",
    name="keygen",
    help="Make a key pair: to sign plans and releases, or to open messages that silos seal to a region.",
    help_epilogue=_example("keygen issuer"),
)
app.command(
    "fulcrum.cli.plan_commands.silos:sign",
    name="sign",
    help="Sign a plan for deployment, as proof of its issuer to silos.",
    help_epilogue=_example("sign plan.json --key issuer"),
)
app.command(
    "fulcrum.cli.plan_commands.silos:policy",
    name="policy",
    help="Check a plan against a silo's own policy, on figures recomputed from multipliers and roster.",
    help_epilogue=_example("policy plan.json --silo lille --policy policy.toml"),
)
app.command(
    "fulcrum.cli.plan_commands.silos:replan_command",
    name="replan",
    help="Plan the remaining rounds from the rest of every silo's privacy budget, by the ledgers.",
    help_epilogue=_example("replan plan.json --federation hospitals.csv --ledgers state -o next.json"),
)

site = App(name="site", help="Prepare a site before it is started.")
site.command(
    "fulcrum.cli.plan_commands.silos:init_site_command",
    name="init",
    help="Make the ledger and further records of a site, once, before the first start.",
    help_epilogue=_example("site init kits/lille"),
)
app.command(site)

ledger = App(name="ledger", help="Show, verify or convert the ledger of a silo.")
ledger.command(
    "fulcrum.cli.plan_commands.silos:show_ledger",
    name="show",
    help="Show every release of a silo, and the epsilon spent against each observer.",
    help_epilogue=_example("ledger show lille.ledger"),
)
ledger.command(
    "fulcrum.cli.plan_commands.silos:verify_ledger_command",
    name="verify",
    help="Recompute a ledger's chain, digests and sums; with --least-sequence, notice a restored old copy.",
    help_epilogue=_example("ledger verify lille.ledger --least-sequence 10"),
)
ledger.command(
    "fulcrum.cli.plan_commands.silos:convert_ledger_command",
    name="convert",
    help="Write a ledger of an earlier version anew; the old ledger allows no further release.",
    help_epilogue=_example("ledger convert old/lille.ledger state/lille.ledger --plan plan.json"),
)
app.command(ledger)

deploy = App(name="deploy", help="Write start-up kits for every site of a plan.")
deploy.command(
    "fulcrum.cli.run_commands.nvflare:deploy_nvflare",
    name="nvflare",
    help="Write start-up kits for NVIDIA FLARE: mutual TLS, the signed plan in place, nothing open.",
    help_epilogue=_example("deploy nvflare plan.json -o kits --host fl.example.org"),
)
deploy.command(
    "fulcrum.cli.run_commands.flower:deploy_flower",
    name="flower",
    help="Write kits for Flower: TLS, registered SuperNodes, the signed plan in place, and the app to run.",
    help_epilogue=_example("deploy flower plan.json -o kits --host fl.example.org"),
)
app.command(deploy)

up = App(name="up", help="Run a plan as a federation of processes on this machine.")
up.command(
    "fulcrum.cli.run_commands.nvflare:up_nvflare",
    name="nvflare",
    help="Run a plan on NVIDIA FLARE with every site a process on this machine, and stop all processes at the end.",
    help_epilogue=_example("up nvflare plan.json -o federation"),
)
up.command(
    "fulcrum.cli.run_commands.flower:up_flower",
    name="flower",
    help="Run a plan on Flower with every site a process on this machine, and stop all processes at the end.",
    help_epilogue=_example("up flower plan.json -o federation"),
)
app.command(up)

simulated = App(name="simulate", help="Run a plan with every silo a virtual node, and the messages of a deployment.")
simulated.command(
    "fulcrum.cli.run_commands.flower:simulate_flower",
    name="flower",
    help="Run a plan on Flower's simulation: every silo a virtual node on Ray, with the messages of a deployment.",
    help_epilogue=_example("simulate flower plan.json -o run"),
)
app.command(simulated)

follow = App(name="follow", help="Start or resume a deployed plan, and follow the plan to its last round.")
follow.command(
    "fulcrum.cli.run_commands.nvflare:follow_nvflare",
    name="nvflare",
    help="Submit the job to a running federation and follow its rounds; an interrupted job resumes.",
    help_epilogue=_example("follow nvflare kits -o run"),
)
app.command(follow)


app.register_install_completion_command(help="Install completion of commands and options for this shell.")


def _as_help(arguments: Sequence[str]) -> list[str]:
    """Returns the words of `help COMMAND` as `COMMAND --help`, and other words unchanged.

    >>> _as_help(["help", "deploy", "nvflare"]), _as_help(["help"]), _as_help(["plan", "help"])
    (['deploy', 'nvflare', '--help'], ['--help'], ['plan', 'help'])
    """
    words = list(arguments)
    return [*words[1:], "--help"] if words[:1] == ["help"] else words


def run(arguments: Sequence[str] | None = None, application: Callable[..., Any] = app) -> int:
    """Runs a command line and returns its exit code; a mistake of the user is one line on stderr and exit code 2.

    With `--format json` the line on stderr is a JSON object with the error's code, message, details and remedy.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show ε shows ? instead of a traceback
            stream.reconfigure(errors="replace")
    try:
        code = application(
            _as_help(sys.argv[1:] if arguments is None else arguments), exit_on_error=False, print_error=False
        )
        sys.stdout.flush()
    except FulcrumError as error:
        mistake = error
    except CycloptsError as error:
        mistake = _usage_error(error)
    except BrokenPipeError:  # the reader of the output has closed the pipe
        sys.stderr.close()
        return 0
    except OSError as error:
        reason = error.strerror or str(error)
        mistake = (
            FulcrumError("cli.file-unusable", file=str(error.filename)[:80], reason=reason)
            if error.filename
            else FulcrumError("cli.output-unusable", reason=reason)
        )
    except MemoryError as error:
        mistake = FulcrumError("cli.memory", advice=str(error))
    except KeyboardInterrupt:
        return 130
    else:
        return code if isinstance(code, int) else 0
    sys.stderr.write(_error_line(mistake, as_json=_json_format(sys.argv[1:] if arguments is None else arguments)))
    return 2


def _json_format(arguments: Sequence[str]) -> bool:
    """Checks a command line for the format JSON.

    >>> _json_format(["plan", "--format", "json"]), _json_format(["plan", "--format=json"]), _json_format(["plan"])
    (True, True, False)
    """
    words = list(arguments)
    return "--format=json" in words or ("--format", "json") in itertools.pairwise(words)


def _error_line(error: FulcrumError, *, as_json: bool) -> str:
    """Returns the line on stderr for an error, with a line break."""
    from fulcrum.words.numbers import printable

    if not as_json:
        return f"fulcrum: {printable(' '.join(str(error).split()))}\n"
    from fulcrum.views.terminal.screen import json_of_data, printable_json

    parts = {"code": error.code, "message": str(error), "details": error.details, "remedy": error.remedy}
    return printable_json(json_of_data({"error": parts})) + "\n"


def _usage_error(error: CycloptsError) -> FulcrumError:
    """Returns the error for wrong words on a command line, with the help command as the remedy."""
    command = " ".join(error.command_chain or ())
    see = f"See: {' '.join(('fulcrum', command, '--help')) if command else 'fulcrum --help'}"
    match error:
        case MissingArgumentError(keyword=str(keyword)):
            return FulcrumError("cli.value-missing", option=keyword, see=see)
        case MissingArgumentError() if (unknown := _unknown_option(error)) is not None:
            return FulcrumError("cli.usage", reason=_without_quotes(unknown))
        case MissingArgumentError(argument=argument) if argument is not None:
            typed_alone = argument.index is not None and "-o" not in argument.names
            name = argument.name.lstrip("-").upper() if typed_alone else argument.name
            return FulcrumError("cli.argument-missing", command=command, argument=name, see=see)
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            return FulcrumError("cli.argument-unknown", argument=first, see=see)
        case RepeatArgumentError(token=token):
            several = ", several targets as region=1,aggregator=2" if token.keyword == "--epsilon" else ""
            return FulcrumError("cli.option-repeated", option=token.keyword, several=several)
        case CoercionError() if isinstance(error.__cause__, FulcrumError):
            return error.__cause__
        case CoercionError(token=token, target_type=target) if token is not None and get_origin(target) is Literal:
            return _choice_error(token.keyword or "", token.value, get_args(target))
    return FulcrumError(
        "cli.usage", reason=_without_quotes(error) if isinstance(error, UnknownOptionError) else str(error)
    )


def _without_quotes(error: UnknownOptionError) -> str:
    """Returns the words of an unknown option; some versions of Cyclopts quote the options."""
    return str(error).replace('"', "")


def _unknown_option(error: MissingArgumentError) -> UnknownOptionError | None:
    """Returns the error for the first unknown option of a command line that lacks an argument; None without any.

    A misspelt option is both unknown and missing, and the spelling is the mistake to name.
    """
    unknown = next((word for word in error.unused_tokens or () if word.startswith("--") and word != "--"), None)
    if unknown is None or error.app is None:
        return None
    token = Token(keyword=unknown.partition("=")[0], source="cli")
    return UnknownOptionError(token=token, argument_collection=error.app.assemble_argument_collection(), verbose=False)


_NOUNS = {"--to": "export", "--kind": "kind of key"}
"""The noun in an error by option, where the noun is not the name of the option."""


def _choice_error(option: str, word: str, choices: Sequence[str]) -> FulcrumError:
    """Returns the error for a word that is no choice of an option.

    >>> str(_choice_error("--size-law", "declare", ["declared", "lognormal"]))
    "unknown size law 'declare'. Known: declared, lognormal. Did you mean 'declared'?"
    """
    try:
        check_known(_NOUNS.get(option, option.lstrip("-").replace("-", " ")), word, choices)
    except ParameterError as error:
        return error
    return FulcrumError("cli.usage", reason=f"{option} {word}")


def main() -> None:
    """Runs the command `fulcrum` and exits with its exit code."""
    sys.exit(run())
