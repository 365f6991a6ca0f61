"""`flowc`: check, compile, format, explain."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

STAGES = ("ast", "graph", "plan", "decision")


def parser() -> argparse.ArgumentParser:
    """The command line of flowc."""
    p = argparse.ArgumentParser(prog="flowc", description="Check, compile, format and explain flows.")
    commands = p.add_subparsers(dest="command", required=True)
    for name, help in (("check", "report what is wrong with a flow"), ("compile", "compile a flow to a plan")):
        c = commands.add_parser(name, help=help)
        _source_options(c)
        if name == "compile":
            _target_options(c)
            _placement_options(c)
            c.add_argument(
                "--emit",
                metavar="STAGE",
                help=f"print what a stage left: {', '.join(STAGES)}; of a multi plan also rank:N, what that rank does"
                " (default: the plan as JSON)",
            )
            c.add_argument("-o", "--output", type=Path, help="where to write the plan (default: standard output)")
            c.add_argument("--require-sources", action="store_true", help=argparse.SUPPRESS)
    f = commands.add_parser("fmt", help="format flows in their canonical style")
    f.add_argument("flows", nargs="+", help=".flow files, or algo.py:FLOW, which is printed as .flow")
    f.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file would change")
    f.add_argument("--stdout", action="store_true", help="print instead of writing the file")
    f.add_argument("--format", choices=("text", "json"), default="text")
    e = commands.add_parser("explain", help="explain an error, or how a flow will run")
    e.add_argument("what", help="an error or warning such as E0201, or a flow")
    e.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    _target_options(e)
    _placement_options(e)
    e.add_argument("--format", choices=("text", "json"), default="text")
    g = commands.add_parser(
        "graph",
        help="draw which phase runs on which devices, and what moves between them",
        description="Draw which phase runs on which devices, and what moves between them. FLOW may also be a .json file"
        " that holds a plan or a placement decision.",
    )
    _source_options(g)
    _target_options(g)
    _placement_options(g)
    g.add_argument("-o", "--output", type=Path, help="FILE.html, .svg, .dot or .mmd (default: DOT on standard output)")
    _simulate_options(commands.add_parser("simulate", help="simulate the run of a placement, event by event"))
    _calibrate_options(commands.add_parser("calibrate", help="compare the cost model with measurements"))
    return p


def _calibrate_options(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Compare the cost model with measured rows, which docs/cost_model.md describes. "
        "Without rows, print its constants."
    )
    p.add_argument("rows", nargs="?", type=Path, help="a JSON file: a list of measured rows (docs/cost_model.md)")
    p.add_argument("--profile", type=Path, metavar="FILE", help="constants to predict with, written by --fit")
    p.add_argument("--fit", type=Path, metavar="FILE", help="fit the constants to the rows first, and write them here")
    p.add_argument("--format", choices=("text", "json"), default="text")


def _target_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--target",
        choices=("single", "multi"),
        default="single",
        help="single: one schedule for one process (default); multi: one program that many ranks run",
    )
    p.add_argument(
        "--ranks", type=int, metavar="N", help="ranks of a multi plan (default: as many as `place` has devices, or 8)"
    )


def _placement_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--cluster",
        metavar="16xH100",
        help="search the best placement on these devices: NxDEVICE, a .toml file, or a cluster of the flow's file",
    )
    p.add_argument("--prompt-tokens", metavar="N", help="of a placement: tokens of a prompt (default: 512)")
    p.add_argument(
        "--response-tokens",
        metavar="MEAN[,LONGEST]",
        help="of a placement: new tokens of a response (default: half of max_new_tokens, and all of them)",
    )
    p.add_argument(
        "--model", action="append", default=[], metavar="ROLE=MODEL", help="of a placement: whose shape a role has"
    )
    p.add_argument("--runnable", action="store_true", help="of a placement: only what this version's runs carry out")


def _simulate_options(p: argparse.ArgumentParser) -> None:
    _source_options(p)
    _placement_options(p)
    p.add_argument("--steps", type=int, default=20, metavar="N", help="steps to simulate (default 20)")
    p.add_argument("--seed", type=int, default=0, metavar="S", help="seed of lengths and failures (default 0)")
    p.add_argument("--as-decided", action="store_true", help="draw no lengths: every phase takes its decided time")
    p.add_argument(
        "--free", action="store_true", help="devices begin the next step without waiting for others to end this one"
    )
    p.add_argument("--mtbf", type=float, metavar="HOURS", help="mean time between failures of the whole run")
    p.add_argument("--restart", type=float, default=300.0, metavar="S", help="seconds of a restart (default 300)")
    p.add_argument("--save-every", type=int, metavar="STEPS", help="steps between commits (50 where runs fail)")
    p.add_argument("--commit", type=float, default=0.0, metavar="S", help="seconds that a commit takes (default 0)")
    p.add_argument("--trace", type=Path, metavar="FILE", help="write the run as trace events, for ui.perfetto.dev")
    p.add_argument("--vary", metavar="nodes=1,2,4", help="the scaling curve over numbers of the cluster's nodes")
    p.add_argument("-o", "--output", type=Path, help="the curve as a picture, .png or .svg")


def _source_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("flow", help="a .flow file, FILE.flow:FLOW, or algo.py:FLOW")
    p.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter, e.g. batch=128prompts"
    )
    p.add_argument("--format", choices=("text", "json"), default="text", help="how to report")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status: 0 well, 1 refused, 2 wrong usage."""
    args = parser().parse_args(argv)
    from .commands import check_command, compile_command  # only now: `--help` needs none of the compiler
    from .targets import BadSetting

    try:
        match args.command:
            case "check":
                return check_command(args)
            case "compile":
                return compile_command(args)
            case "fmt":
                from .formatting import format_files

                return format_files(args.flows, check=args.check, stdout=args.stdout, as_json=args.format == "json")
            case "graph":
                from .drawing.command import graph_command

                return graph_command(args)
            case "simulate":
                from .simulation.command import simulate_command

                return simulate_command(args)
            case "calibrate":
                from .calibrate import calibrate_command

                return calibrate_command(args)
        from .explain import explain

        return explain(args)
    except BrokenPipeError:
        return 0
    except OSError as error:
        print(f"flowc: can't open `{error.filename}`: {error.strerror}", file=sys.stderr)
    except UnicodeDecodeError as error:
        print(f"flowc: the file isn't UTF-8 text: {error.reason} at byte {error.start}", file=sys.stderr)
    except BadSetting as error:
        print(f"flowc: {error}", file=sys.stderr)
    except RecursionError:
        print("flowc: the file nests too deeply", file=sys.stderr)
    return 2
