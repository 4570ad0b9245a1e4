"""The command line. Each command is a function from arguments to the exit status, in a module that is imported on use."""

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from stayfast import __version__

GATEWAY_URL = "http://127.0.0.1:8090"
EXIT_STATUSES = """\
exit status:
  0    success; for `serve`: every running answer was finished
  1    `serve` cut answers off at shutdown; a check found a problem;
       `doctor` found something to change; `plan`: the replay does not
       reproduce the log; `quantise`: the loss exceeds a bound
  2    wrong usage; `doctor`, `top`: no data; `quantise`: nothing written
  3    the address is in use or not available
  4    the workers cannot be started
  5    nothing to do: `cache purge` found no answer, `warm` found no cacheable
       question, `prove` has no data for a proof, `plan` has too little traffic
  6    `prove`: no claim falls short, but one is inconclusive; `quantise`:
       the check is inconclusive or failed
  78   the settings are invalid
"""


EXIT_NOTHING_TO_DO = 5
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141  # as a shell reports SIGPIPE
_FUNCTIONS = {  # commands whose function is not `run` in the module of the same name
    "check": ("serve", "check"),
    "init": ("files", "write_starter"),
    "schema": ("files", "print_schema"),
    "key": ("keys", "run"),
    "alerts": ("files", "print_alerts"),
    "dashboard": ("files", "print_dashboard"),
    "import": ("import_command", "run"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. An interrupt that the command does not handle prints no traceback,
    nor does a reader that closes its pipe."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        sys.stderr.write("\n" * sys.stderr.isatty())
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return EXIT_READER_LEFT


def _run(words: Sequence[str]) -> int:
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(2)
    parsed = parser.parse_args(words)
    if parsed.command == "version":
        sys.stdout.write(f"stayfast {__version__}\n")
        return 0
    module, function = _FUNCTIONS.get(parsed.command, (parsed.command, "run"))
    status: int = getattr(import_module(f"stayfast.cli.{module}"), function)(parsed)
    return status


class Command(argparse.ArgumentParser):
    """The options of one command. With `module`, that module's `parse` reads them; it is imported on use."""

    def __init__(self, *arguments: Any, module: str | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Report unknown options here, with a suggestion, instead of in the main parser."""
        if self._module is not None:
            return import_module(self._module).parse(args), []
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = next((word for word in unknown if word.startswith("--")), "").partition("=")[0]
            near = get_close_matches(word, list(self._option_string_actions), 1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + "".join(f"; did you mean {one}?" for one in near))
        return found, unknown


class _Commands(argparse.ArgumentParser):
    """The main parser. For an unknown command it suggests the most similar one."""

    def error(self, message: str) -> NoReturn:
        word, is_choice, choices = message.removeprefix("argument COMMAND: invalid choice: '").partition("' (choose from ")
        if is_choice:
            near = get_close_matches(word, choices.replace("'", "").rstrip(")").split(", "), 1)
            hint = f", did you mean {near[0]}?" if near else "."
            message = f"unknown command {word}{hint} `stayfast --help` lists all"
        self.print_usage(sys.stderr)
        self.exit(2, wrap_to_terminal(f"stayfast: {message}") + "\n")


class _Once(argparse.Action):
    """An option that must not be repeated, as the second value would replace the first."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given twice")
        setattr(namespace, self.dest, values)


def _parser() -> argparse.ArgumentParser:
    parser = _Commands(
        prog="stayfast", description="An LLM gateway that keeps applications fast at p99.",
        epilog=EXIT_STATUSES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=16))
    parser.add_argument("--version", action="version", version=f"stayfast {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Command)

    serve = commands.add_parser("serve", help="run the gateway")
    serve.add_argument("--config", metavar="FILE", help="settings (default: $STAYFAST_CONFIG, ./stayfast.yaml, built-in)")
    serve.add_argument("--host", help="address to listen on")
    serve.add_argument("--port", help="TCP port; 0: any free one")
    serve.add_argument("--workers", metavar="N", help="processes that share the port")
    serve.add_argument("--model", metavar="PATH", help="a GGUF file for the embedded engine")
    serve.add_argument("--log-format", metavar="FORMAT", help="auto (text on a terminal), text or json")
    serve.add_argument("--check", action="store_true", help="check the settings and exit")
    serve.add_argument("--worker", help=argparse.SUPPRESS)  # n/N: one of a parent's workers

    work = commands.add_parser("work", help="run jobs from the shared store, without listening")
    work.add_argument("--config", metavar="FILE", help="settings (default: as for serve)")
    work.add_argument("--concurrency", metavar="N", help="most jobs at a time (default: the settings')")

    check = commands.add_parser("check", help="check a settings file")
    check.add_argument("file", nargs="?", help="settings (default: as for serve)")
    check.add_argument("--effective", action="store_true", help="print all settings as YAML, with the source of each that "
                       "is not a default")
    check.add_argument("--live", action="store_true", help="also reach each upstream: DNS, TLS, key, model, one token (it "
                       "costs a token)")

    init = commands.add_parser("init", help="write a settings file to start from")
    init.add_argument("file", nargs="?", default="stayfast.yaml", help="output file (default: %(default)s)")
    init.add_argument("--force", action="store_true", help="overwrite the file if it exists")

    imported = commands.add_parser("import", help="write a settings file from that of another gateway")
    imported.add_argument("format", choices=("litellm",), help="of the file")
    imported.add_argument("file", metavar="FILE", help="LiteLLM's config.yaml")
    imported.add_argument("-o", "--output", metavar="FILE", help="output file (default: standard output)")
    imported.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    imported.add_argument("--report", action="store_true", help="only list what becomes of every single value")
    imported.add_argument("--strict", action="store_true", help="exit with 2 if any value is not taken")

    schema = commands.add_parser("schema", help="print the JSON Schema of the settings")
    schema.add_argument("--markdown", action="store_true", help="print the reference page instead")

    _add_sim(commands)

    commands.add_parser("bench", help="measure a gateway or a provider under load", add_help=False,
                        module="stayfast.cli.bench")

    _add_cache(commands)
    _add_classify(commands)
    _add_jobs(commands)
    _add_warm(commands)
    commands.add_parser("key", help="make an API key for a client; create, list, rotate or revoke stored keys",
                        add_help=False, module="stayfast.cli.keys")
    _add_spend(commands)
    _add_prompts(commands)

    _add_monitoring(commands)
    commands.add_parser("plan", help="predict what changes would bring, from your own traffic", add_help=False,
                        module="stayfast.cli.plan")
    commands.add_parser("quantise", help="write a GGUF model with smaller weights, and measure what that costs",
                        add_help=False, module="stayfast.cli.quantise")
    _add_prove(commands)

    commands.add_parser("version", help="print the version")
    return parser


def _add_prove(commands: "argparse._SubParsersAction[Command]") -> None:
    prove = commands.add_parser("prove", help="run a published claim again, on this machine")
    prove.add_argument("name", nargs="*", help="proofs to run (see --list)")
    prove.add_argument("--all", action="store_true", help="run all of them")
    prove.add_argument("--list", action="store_true", help="list them and exit")
    prove.add_argument("--quick", action="store_true", help="shorter runs: coarser figures")
    prove.add_argument("--json", action="store_true", help="print figures as JSON")
    prove.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: %(default)s)")
    prove.add_argument("--data", metavar="DIR", help="data sets that a proof needs and the project does not have")


def _add_monitoring(commands: "argparse._SubParsersAction[Command]") -> None:
    alerts = commands.add_parser("alerts", help="print Prometheus rules for the settings")
    alerts.add_argument("--config", metavar="FILE", help="settings (default: as for serve)")
    alerts.add_argument("--format", choices=("prometheus", "sloth"), default="prometheus", help="(default: %(default)s)")
    alerts.add_argument("--out", metavar="FILE", help="where (default: standard output)")

    dashboard = commands.add_parser("dashboard", help="print the Grafana dashboard")
    dashboard.add_argument("--out", metavar="FILE", help="where (default: standard output)")

    top = commands.add_parser("top", help="show routes and upstreams of a running gateway, once a second")
    _add_address(top, "url", "URL", "the gateway")
    top.add_argument("--once", action="store_true", help="print one table and exit")
    top.add_argument("--json", action="store_true", help="print one frame as JSON and exit")
    top.add_argument("--key-env", metavar="NAME", help="the variable of the environment that holds a key")

    explain = commands.add_parser("explain", help="show where the time of a recent request went")
    which = explain.add_mutually_exclusive_group(required=True)
    which.add_argument("request_id", metavar="REQUEST-ID", nargs="?", help="the answer's x-request-id")
    which.add_argument("--last", action="store_true", help="the request that ended last")
    which.add_argument("--slowest", action="store_true", help="the slowest of the remembered requests")
    add_gateway_options(explain)

    listing = commands.add_parser("requests", help="list the last or the slowest requests of a running gateway")
    order = listing.add_mutually_exclusive_group()
    order.add_argument("--slowest", dest="which", action="store_const", const="slowest", help="the slowest first")
    order.add_argument("--notable", dest="which", action="store_const", const="notable",
                       help="only slow, failed, retried and degraded ones, which are remembered longer")
    listing.set_defaults(which="all")
    listing.add_argument("-n", type=int, default=20, help="most so many (default: %(default)s)")
    listing.add_argument("--route", help="of this route")
    listing.add_argument("--upstream", help="with a call to this upstream")
    listing.add_argument("--status", help="with this status, for example 503 or 5xx")
    listing.add_argument("--outcome", help="ok, degraded, client_left, failed or rejected")
    listing.add_argument("--since", metavar="TIME", help="ended within this time, for example 5m")
    add_gateway_options(listing)
    _add_doctor(commands)


def _add_doctor(commands: "argparse._SubParsersAction[Command]") -> None:
    doctor = commands.add_parser("doctor", help="find what is wrong with a gateway, and what to change")
    _add_address(doctor, "target", "URL|FILE", "the gateway, a file of its /admin/snapshot, or -")
    doctor.add_argument("--since", metavar="TIME", help="also what began or ended since then, such as 02:10 or 30m")
    doctor.add_argument("--all", action="store_true", help="also show findings that another one explains")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--key-env", metavar="NAME", help="the variable of the environment that holds a key")


def _add_address(command: argparse.ArgumentParser, name: str, metavar: str, what: str) -> None:
    """Add the gateway's address as an argument, and as `--url`, which other commands have."""
    command.set_defaults(**{name: GATEWAY_URL})  # a default of the argument would replace the value of the option
    command.add_argument(name, nargs="?", default=argparse.SUPPRESS, metavar=metavar,
                         help=f"{what} (default: {GATEWAY_URL})")
    command.add_argument("--url", dest=name, default=argparse.SUPPRESS, help="the same, as of other commands")


def _add_warm(commands: "argparse._SubParsersAction[Command]") -> None:
    warm = commands.add_parser("warm", help="fill the caches of a gateway with answers to expected questions")
    warm.add_argument("file", metavar="FILE", help="one question, or request as JSON, per line")
    warm.add_argument("--model", metavar="ROUTE", help="route for lines that are not JSON")
    warm.add_argument("--embed", action="store_true", help="treat lines that are not JSON as texts to embed with --model")
    warm.add_argument("--call", metavar="MODULE:NAME", help="call a turns.CachedFunction with each line, without a gateway")
    when = warm.add_mutually_exclusive_group()
    when.add_argument("--every", metavar="TIME", help="repeat at this interval, for example 1h")
    when.add_argument("--cron", metavar="LINE", help='repeat by this schedule in local time, for example "0 6 * * 1-5"')
    warm.add_argument("--fresh-for", metavar="TIME", help="refresh older answers (default: any stored answer is fresh)")
    warm.add_argument("--budget", metavar="TOKENS", type=int, help="stop a round after this many tokens")
    warm.add_argument("--per-second", metavar="N", type=float, default=2.0, help="request rate (default: %(default)s)")
    warm.add_argument("--at-once", metavar="N", type=int, default=4, help="concurrent requests (default: %(default)s)")
    warm.add_argument("--url", default=GATEWAY_URL, help="the gateway (default: %(default)s)")
    warm.add_argument("--key-env", metavar="NAME", help="the variable of the environment that holds a key")


def _add_spend(commands: "argparse._SubParsersAction[Command]") -> None:
    spend = commands.add_parser("spend", help="show what requests cost, by tenant, key, route, model or day")
    spend.add_argument("--by", default="tenant", metavar="GROUPS", help="tenant, key, route, model, day; several by commas "
                       "(default: %(default)s)")
    spend.add_argument("--since", default="30d", metavar="TIME", help="the last days, today included (default: %(default)s)")
    spend.add_argument("--tenant", metavar="NAME", help="of one tenant")
    add_gateway_options(spend)
    spend.add_argument("--store", action="store_true", help="read the store of the settings, without a gateway")
    spend.add_argument("--config", metavar="FILE", help="settings for --store (default: as for serve)")


def _add_prompts(commands: "argparse._SubParsersAction[Command]") -> None:
    prompts = commands.add_parser("prompts", help="show versions of system prompts: tokens, cached share, cost, changes")
    actions = prompts.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="one line for each version of the last hour")
    listing.add_argument("--route", metavar="NAME", help="of one route")
    show = actions.add_parser("show", help="one version: sizes, what moves, what repeats, which tools are called")
    diff = actions.add_parser("diff", help="how a version differs from the one before it, and what that costs")
    for action in (show, diff):
        action.add_argument("prompt", metavar="PROMPT", help="6 or more digits of its id, from `stayfast prompts list`")
    diff.add_argument("--against", metavar="PROMPT", help="compare with this version (default: the one before it)")
    for action in (listing, show, diff):
        add_gateway_options(action)


def add_gateway_options(command: argparse.ArgumentParser) -> None:
    """Add the options of commands that call a running gateway."""
    command.add_argument("--url", default=GATEWAY_URL, help="the gateway (default: %(default)s)")
    command.add_argument("--key-env", metavar="NAME", help="the variable of the environment that holds a key")
    command.add_argument("--json", action="store_true", help="print what the gateway answered")


def _add_cache(commands: "argparse._SubParsersAction[Command]") -> None:
    cache = commands.add_parser("cache", help="show, purge or evaluate caches")
    actions = cache.add_subparsers(dest="action", required=True, metavar="ACTION")
    stats = actions.add_parser("stats", help="show contents and savings, by route and kind")
    inspect = actions.add_parser("inspect", help="show the metadata of one stored answer")
    inspect.add_argument("key", metavar="KEY", help="64 hexadecimal digits, from `x-cache` or `stayfast explain`")
    purge = actions.add_parser("purge", help="delete stored answers")
    purge.add_argument("--route", metavar="NAME", action=_Once, help="of one route")
    purge.add_argument("--tenant", metavar="NAME", action=_Once, help="of one tenant")
    purge.add_argument("--tag", metavar="WORD", action=_Once, help="with this tag of the client (x-cache-tags)")
    purge.add_argument("--key", metavar="KEY", action=_Once, help="by its key in `x-cache` or `stayfast explain`")
    purge.add_argument("--all", action="store_true", help="all answers")
    for action in (stats, inspect, purge):
        add_gateway_options(action)
    evaluate = actions.add_parser("eval", help="measure hit rate and error of a semantic cache on your own questions")
    files = evaluate.add_mutually_exclusive_group(required=True)
    files.add_argument("--classes", metavar="FILE", help="CSV with text,category: one category, one answer")
    files.add_argument("--pairs", metavar="FILE", help="CSV with sentence1,sentence2,label, or JSON with origin, similar")
    evaluate.add_argument("--max-error", default="0.5%,1%,2%,5%,10%", metavar="SHARES",
                        help="allowed shares of wrong hits (default: 0.5, 1, 2, 5 and 10 %%)")
    evaluate.add_argument("--min-labels", type=int, default=300, metavar="N",
                        help="comparisons before the first hit, as in the settings (default: %(default)s)")
    evaluate.add_argument("--personal", action="store_true", help='questions with "my" may share answers')
    evaluate.add_argument("--volatile", action="store_true", help="so may questions about today and prices")
    evaluate.add_argument("--words", type=int, default=1, metavar="N",
                          help="fewest content words of a question (default: %(default)s)")
    evaluate.add_argument("--model", metavar="PATH", help="an ONNX file or a sentence-transformers folder (default: MiniLM)")
    evaluate.add_argument("--seed", type=int, default=1, help="seed of the random order (default: %(default)s)")
    evaluate.add_argument("--html", metavar="FILE", help="also write a self-contained HTML report")
    evaluate.add_argument("--json", action="store_true", help="print JSON")


def _add_classify(commands: "argparse._SubParsersAction[Command]") -> None:
    classify = commands.add_parser("classify", help="train, test or show a classifier of texts")
    actions = classify.add_subparsers(dest="action", required=True, metavar="ACTION")
    train = actions.add_parser("train", help="train one from labelled examples")
    train.add_argument("file", metavar="CSV", help="with the columns text and label")
    train.add_argument("--out", required=True, metavar="FILE", help="the classifier to write (.npz)")
    train.add_argument("--embedder", choices=("static", "minilm", "both"), default="static",
                       help="static: 0.05 ms a text. minilm: 2 ms, better with few examples. both: minilm only where static "
                            "is unsure (default: %(default)s)")
    train.add_argument("--precision", type=float, default=0.0, metavar="SHARE",
                       help="share of right answers below which the answer is unknown, such as 0.95 (default: no unknown)")
    train.add_argument("--calibration", choices=("temperature", "isotonic"), default="temperature",
                       help="(default: %(default)s)")
    train.add_argument("--seed", type=int, default=1, help="which rows are held out (default: %(default)s)")
    test = actions.add_parser("test", help="measure one on other labelled examples")
    test.add_argument("classifier", metavar="FILE", help="a file of `stayfast classify train`")
    test.add_argument("file", metavar="CSV", help="with the columns text and label")
    test.add_argument("--json", action="store_true", help="print JSON")
    for action in (train, test):
        action.add_argument("--model", metavar="PATH", help="an ONNX file or a sentence-transformers folder in place of "
                                                            "MiniLM, as embedder.model")
    show = actions.add_parser("show", help="show the labels, calibration and origin of one")
    show.add_argument("classifier", metavar="FILE", help="a file of `stayfast classify train`")


def _add_jobs(commands: "argparse._SubParsersAction[Command]") -> None:
    jobs = commands.add_parser("jobs", help="list, retry or cancel the jobs of a gateway")
    actions = jobs.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show the queues and the newest jobs")
    listing.add_argument("--state", metavar="STATES", help="queued, running, completed, failed, cancelled, expired, dead")
    dead = actions.add_parser("dead", help="show the dead-letter list: workers died, or retries are used up")
    for action in (listing, dead):
        action.add_argument("--tenant", metavar="NAME", help="of one key")
        action.add_argument("--batch", metavar="ID", help="of one batch")
        action.add_argument("--after", metavar="JOB", help="older than this job")
        action.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many (default: %(default)s)")
    show = actions.add_parser("show", help="show one job, without its prompt and its answer")
    show.add_argument("job", metavar="JOB", help="its id")
    retry = actions.add_parser("retry", help="put dead, failed, expired or cancelled jobs back into the queue")
    cancel = actions.add_parser("cancel", help="cancel jobs")
    for action in (retry, cancel):
        action.add_argument("job", metavar="JOB", nargs="+", help="ids")
    webhooks = actions.add_parser("webhooks", help="show webhooks that are not confirmed, and why")
    webhooks.add_argument("--retry", metavar="EVENT", action="append", help="first send this failed one again")
    for action in (listing, dead, show, retry, cancel, webhooks):
        add_gateway_options(action)


def _add_sim(commands: "argparse._SubParsersAction[Command]") -> None:
    sim = commands.add_parser("sim", help="simulate providers: jagged, faulty, rate-limited, repeatable")
    sim.add_argument("--provider", action="append", default=[], metavar="NAME=PRESET",
                     help="a provider at /NAME/v1, the first also at /v1; again for more (default: sim=gpt-4o-like)")
    sim.add_argument("--config", metavar="FILE", help="YAML: `providers`, with every knob (docs/simulator.md)")
    sim.add_argument("--list-presets", action="store_true", help="list the presets and exit")
    sim.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    sim.add_argument("--port", type=int, default=8100, help="TCP port; 0 takes a free one (default: %(default)s)")
    sim.add_argument("--seed", type=int, default=0, help="same seed, same answers (default: %(default)s)")
    sim.add_argument("--key", help="demand this API key of clients")
    sim.add_argument("--control-anywhere", action="store_true", help="answer /_sim/ on addresses that others can reach too")
    sim.add_argument("--json", action="store_true", help="JSON on standard output: first the address, at the end the counts")


def print_message(text: str) -> None:
    """Print a message to standard error; standard output is for logs and results."""
    sys.stderr.write(f"{wrap_to_terminal(text) if sys.stderr.isatty() else text}\n")
    sys.stderr.flush()


def wrap_to_terminal(text: str) -> str:
    """Wrap text to the terminal's width. Indented lines are commands to copy and are not wrapped."""
    columns = max(40, shutil.get_terminal_size().columns)
    return "\n".join(line if line.startswith(" ") else textwrap.fill(
        line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))


def curl_example(url: str, model: str, header: str = "") -> str:
    """An example curl command. `url` ends in /v1."""
    lines = [f"  curl -i -N {url}/chat/completions", *([f"    {header}"] if header else []),
             "    -H 'content-type: application/json'", f"    -d '{{\"model\": {json.dumps(model)}, \"stream\": true,"]
    return " \\\n".join(lines) + '\n         "messages": [{"role": "user", "content": "Hello!"}]}\''
