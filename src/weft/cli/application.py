"""The parser, and what happens to the errors of a command.

Exit codes: 0 for success, 1 where a program failed, 2 for a mistake in the command, its file or its
settings, 130 where it was interrupted.

>>> parser().parse_args(["train", "mine.py", "--epochs", "3", "--set", "lr=0.1"]).epochs
3
"""

from __future__ import annotations

import re
import sys
import traceback
from argparse import (
    REMAINDER,
    SUPPRESS,
    ArgumentParser,
    BooleanOptionalAction,
    RawDescriptionHelpFormatter,
    _SubParsersAction,
)
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import weft as wf
from weft.cli import (
    board,
    commands,
    from_files,
    launching,
    looking,
    machine,
    planning,
    shipping,
)
from weft.cli.mistakes import Mistake, unknown_key

__all__ = ["main", "parser"]

DESCRIPTION = """Weft: a deep-learning framework. Train, judge and look at models.

  weft train mine.py --epochs 5 --set lr=0.01 --folder run
  weft train recommender.toml optimizer.lr=0.01
  weft sweep recommender.toml --trials 20
  weft eval mine.py --folder run
  weft show mine.py:net --input 1x3x224x224 -o net.html
  weft check mine.py:net --input float32:batch,784
  weft launch -n 4 train.py
  weft plan mine.py:net --input 256x784 --devices 64 --memory 80GB
  weft board runs
  weft export mine.py:net --input 1x784 --target aarch64-linux --check
  weft onnx mine.py:net --input float32:batch,784 -o net.onnx
  weft info"""

BOARD = """Show runs side by side in a browser: curves, settings, samples, use of the machine.

  weft train mine.py --board runs/first
  weft board runs
  weft board runs --export runs.html

The server answers to this machine alone."""

SHOW = """Print the summary of a model, and write a picture of its graph.

  weft show model.py:net --input 1x3x224x224 -o net.html
  weft show model.py:net --input 8x784 --train --loss cross_entropy --target int64:8 -o step.html"""

CHECK = """Look for mistakes: types, shapes, unused parameters, lost values, gradients that are
always zero, dtype and broadcast surprises, dead branches. Exits with 1 where there are errors.

  weft check model.py:net --input float32:batch,784
  weft check model.py:net --input float32:batch,784 --loss cross_entropy --target int64:batch"""

LAUNCH = """Start a script in several processes; its arguments stand behind it.

  weft launch -n 4 train.py --epochs 3
  weft launch -n 8 --hosts one,two train.py

Output is prefixed by rank. The first failure is shown first, and its exit code is the job's."""

PLAN = """Look for the mesh and the placements with which a training step takes least time.
Nothing is run: every way to lay the devices out as data x model is divided and simulated.

  weft plan model.py:net --input 256x784 --target int64:256 --loss cross_entropy --devices 8
  weft plan model.py:net --input 256x784 --devices 1024 --memory 80GB --link 400Gb/s"""

EXPORT = """Write a model as a library for a machine, without Python: an object file, a static and,
where a linker is found, a shared library, a C header, and a main program that shows their use.

  weft export model.py:net --input 1x784 --target aarch64-linux -o model --check
  weft export model.py:net --folder run --input 1x3x32x32 --target wasm32 --weights beside
  weft export model.py:net --input float32:batch,784 --most batch=64 --form c
  weft export model.onnx --input 1x1x28x28"""

ONNX = """Write a model as an ONNX file; sizes that are names may vary. The file is run and compared
with Weft value by value, at two sizes where sizes vary, and written only where it agrees.

  weft onnx model.py:net --input float32:batch,784 -o net.onnx
  weft onnx digits --input float32:batch,64 --folder run -o digits.onnx"""

NETWORK_HELP = "FILE.py:name of a module, a class, or a function of tensors; or a program"
PROGRAM_HELP = "a registered name, a file FILE.py or FILE.py:function, or FILE.toml"
MODEL_HELP = "a registered name, a file FILE.py or FILE.py:net, FILE.toml, or FILE.onnx"
OVERRIDES_HELP = "keys of FILE.toml, such as optimizer.lr=0.01"

SWEEP = """Train a file of settings many times, with other values for the keys of [sweep.space].
What was interrupted goes on where it was. The page of results is index.html in the folder.

  weft sweep recommender.toml --trials 20
  weft sweep recommender.toml --method optuna train.epochs=5"""

TRAIN = """Train a file of settings (TOML or YAML), whose keys can be changed behind it:

  weft train recommender.toml optimizer.lr=0.01 train.epochs=5

or a program: a registered name, or a Python file that defines
  build(setting=default, ...) -> dict   or the names themselves:
  model, loss, optimizer, train_data    and perhaps
  validation_data, metrics, callbacks, schedule"""


class Parser(ArgumentParser):
    """An argument parser whose mistakes name the nearest flag."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, and exit with 2."""
        self.exit(2, f"error: {self._explain_message(message)}\n  see: {self.prog} --help\n")

    def _explain_message(self, message: str) -> str:
        """The message, or where a name is wrong, the nearest that is right."""
        wrong = re.search(r"unrecognized arguments: ([^\s=]+)", message)
        choice = re.search(r"COMMAND: invalid choice: '([^']*)'", message)
        if wrong:
            flags = [flag for action in self._actions for flag in action.option_strings]
            return str(unknown_key("option", wrong[1], flags))
        if choice:
            names = [name for action in self._actions for name in action.choices or ()]
            return str(unknown_key("command", choice[1], names))
        return message

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments here, where the flags of the command are known."""
        flags, rest = super().parse_known_args(args, namespace)
        if hasattr(flags, "overrides"):  # those behind flags are none of argparse's positionals
            flags.overrides += [word for word in rest if "=" in word and word[0] != "-"]
            rest = [word for word in rest if word not in flags.overrides]
        if rest and not getattr(flags, "rest_allowed", False):
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return flags, rest


def parser() -> Parser:
    """The parser of the whole command line."""
    whole = Parser("weft", description=DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    whole.add_argument("--version", action="version", version=f"weft {wf.__version__}")
    kinds = whole.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    _add_train(kinds)
    evaluate = _command(
        kinds, "eval", "judge a trained program by its validation data", commands.evaluate
    )
    _add_program(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    predict = _command(kinds, "predict", "the outputs of a trained program", commands.predict)
    _add_program(predict)
    predict.add_argument("--input", metavar="FILE", help="inputs: .npy, .npz or .csv")
    predict.add_argument("--output", metavar="FILE.npy", help="where to write; else printed")
    _add_sweep(kinds)
    _add_show(kinds)
    _add_check(kinds)
    _add_launch(kinds)
    _add_plan(kinds)
    _add_board(kinds)
    _add_export(kinds)
    _add_onnx(kinds)
    bench = _command(kinds, "bench", "run the benchmarks of a checkout", commands.bench)
    bench.add_argument("name", nargs="?", help="which; without it, the list of them")
    bench.add_argument("arguments", nargs="*", help="for the benchmark, behind --")
    bench.add_argument("--directory", default="benchmarks", help="where they are")
    info = _command(kinds, "info", "the machine, its devices, and versions", machine.info)
    info.add_argument("--json", action="store_true", help="print JSON")
    info.add_argument("--quiet", action="store_true", help=SUPPRESS)
    return whole


def _command(
    kinds: _SubParsersAction[Any], name: str, text: str, run: Any, description: str = ""
) -> ArgumentParser:
    parser: ArgumentParser = kinds.add_parser(
        name,
        help=text,
        description=description or text.capitalize() + ".",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return parser


def _add_program(command: ArgumentParser, told: str = PROGRAM_HELP) -> None:
    command.add_argument("program", help=told)
    command.add_argument("--folder", metavar="FOLDER", help="of checkpoints; the newest is used")
    command.add_argument("--best", action="store_true", help="the best checkpoint, not the newest")
    command.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of build")
    command.add_argument("--batch-size", type=int, default=32, metavar="N")
    command.add_argument("--device", metavar="NAME", help="where to compute: cpu, cuda, cuda:1")


def _add_sweep(kinds: _SubParsersAction[Any]) -> None:
    sweep = _command(
        kinds, "sweep", "train a file of settings many times", from_files.sweep_file, SWEEP
    )
    add = sweep.add_argument
    add("program", metavar="FILE.toml", help="settings with a table [sweep]")
    add("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES_HELP)
    add("--trials", type=int, metavar="N", help="how many in all")
    add("--method", choices=["random", "grid", "optuna"], help="what is tried next")
    add("--folder", metavar="FOLDER", help="where the trials are kept")


def _add_show(kinds: _SubParsersAction[Any]) -> None:
    show = _command(
        kinds, "show", "the summary of a model, and a picture of it", looking.show, SHOW
    )
    _add_program(show, MODEL_HELP)
    _add_inputs(show)
    add = show.add_argument
    add("-o", "--graph", metavar="FILE", help="write a picture: .html, .svg, .dot")
    add("--train", action="store_true", help="a whole training step: backward and update, too")
    add("--tensorboard", metavar="FOLDER", help="write the graph for TensorBoard")
    add("--no-measure", action="store_true", help="do not run it to time its kernels")


def _add_check(kinds: _SubParsersAction[Any]) -> None:
    check = _command(
        kinds, "check", "look for mistakes without running anything", looking.check, CHECK
    )
    check.add_argument("program", help=NETWORK_HELP)
    check.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of build")
    _add_inputs(check)
    check.add_argument("--json", action="store_true", help="print JSON")
    check.add_argument("--strict", action="store_true", help="fail on warnings, too")


def _add_launch(kinds: _SubParsersAction[Any]) -> None:
    launch = _command(
        kinds, "launch", "start a script in several processes", launching.launch, LAUNCH
    )
    add = launch.add_argument
    add("-n", "--processes", type=int, default=2, metavar="N", help="how many; 2 if not said")
    add("--hosts", metavar="A,B", help="over these hosts, by ssh; else all on this one")
    add("--engine", choices=["mpi", "gloo"], default="mpi", help="what joins them")
    add("--folder", help="where they meet; all hosts see it (gloo); else one of this host")
    add("--restarts", type=int, default=0, help="start a killed process again so often (gloo)")
    add("--threads", type=int, metavar="N", help="of each process; else its share of the cores")
    add("--timeout", type=float, metavar="SECONDS", help="how long one waits for another; else 600")
    add("script", metavar="FILE.py")
    add("arguments", nargs=REMAINDER, help="for the script")


def _add_plan(kinds: _SubParsersAction[Any]) -> None:
    plan = _command(
        kinds, "plan", "look for the mesh on which a step takes least time", planning.plan, PLAN
    )
    _add_program(plan)
    _add_inputs(plan)
    add = plan.add_argument
    add("--devices", type=int, required=True, help="how many devices there are")
    add("--memory", metavar="SIZE", help="what each has, as 80GB; without it, anything fits")
    add("--link", metavar="SPEED", default="400Gb/s", help="what each sends: 400Gb/s, 50GB/s")
    add("--latency", type=float, default=1e-6, help="seconds before a transfer begins")
    add("--flops", type=float, default=100e12, help="operations per second of a device")
    add("--measure", action="store_true", help="measure all of these, in processes of this machine")
    add("--save-costs", metavar="FILE", help="write what was measured")
    add("--costs", metavar="FILE", help="use what was measured before")


def _add_board(kinds: _SubParsersAction[Any]) -> None:
    command = _command(kinds, "board", "a page of runs, side by side", board.board, BOARD)
    add = command.add_argument
    add("folder", metavar="FOLDER", help="of a run, or of folders of runs")
    add("--port", type=int, default=6060, metavar="N", help="6060 if not said; 0 for any")
    add("--export", metavar="FILE.html", help="write the page as one file instead")
    add("--open", action="store_true", help="open it in a browser")


def _add_export(kinds: _SubParsersAction[Any]) -> None:
    export = _command(
        kinds, "export", "a model as a library without Python", shipping.export, EXPORT
    )
    _add_program(export, MODEL_HELP)
    add = export.add_argument
    add("--input", action="append", metavar="TYPE", help="of an input: 1x3x224x224, int64:1,16")
    add("--target", default="host", metavar="MACHINE", help="such as aarch64-linux; else this one")
    add("-o", "--output", default="model", metavar="FOLDER", help="where to write")
    add("--name", default="model", help="what files and functions begin with")
    add("--form", default="object", choices=["object", "c"], help="c: one file in C99")
    add("--weights", choices=["inside", "beside"], help="inside of the code, or in a file")
    add("--memory", default="heap", choices=["heap", "static"], help="static: no malloc")
    add("--most", action="append", metavar="SIZE=N", help="the largest of a size that is a name")
    add("--threads", type=int, default=1, metavar="N", help="of an instance, by pthread")
    add("--strip-names", action="store_true", help="leave names of weights and lines out")
    add("--check", action="store_true", help="run it, and compare it with Weft")


def _add_onnx(kinds: _SubParsersAction[Any]) -> None:
    onnx = _command(kinds, "onnx", "write a model as an ONNX file", shipping.write_onnx, ONNX)
    _add_program(onnx, MODEL_HELP)
    add = onnx.add_argument
    add("--input", action="append", metavar="TYPE", help="of an input: 1x3x224x224, int64:batch,16")
    add("-o", "--output", metavar="FILE.onnx", required=True, help="where to write")
    add("--opset", type=int, metavar="N", help="18 to 23; else the lowest that has the operators")
    add("--no-verify", action="store_true", help="do not run the file")


def _add_inputs(command: ArgumentParser) -> None:
    add = command.add_argument
    add("--input", action="append", metavar="TYPE", help="of an input: 1x3x224x224, int64:batch,16")
    add("--loss", metavar="NAME", help="of wf.nn.functional, or of the file")
    add("--target", action="append", metavar="TYPE", help="of what the loss compares with")


def _add_train(kinds: _SubParsersAction[Any]) -> None:
    train = _command(kinds, "train", "train a program", commands.train, TRAIN)
    add = train.add_argument
    add("program", nargs="?", help=PROGRAM_HELP)
    add("overrides", nargs="*", metavar="KEY=VALUE", help=OVERRIDES_HELP)
    add("--config", metavar="FILE.toml", help="keys as these flags, and a table [set]")
    add("--set", action="append", metavar="KEY=VALUE", help="a setting of build; may be repeated")
    add("--epochs", type=int, metavar="N")
    add("--batch-size", type=int, metavar="N", help="where the data are arrays")
    add("--folder", metavar="FOLDER", help="keep checkpoints here")
    add("--resume", action="store_true", default=None, help="go on from the newest of them")
    add("--checkpoint-every", type=int, metavar="STEPS", help="else after every epoch")
    add("--keep-last", type=int, metavar="N")
    add("--seed", type=int, metavar="N")
    add("--device", metavar="NAME", help="where to compute: cpu, cuda, cuda:1")
    add("--precision", choices=["float32", "bfloat16", "float16", "float8"])
    add("--accumulate", type=int, metavar="N", help="batches to one update")
    add("--clip-norm", type=float, metavar="X")
    add("--ema", type=float, metavar="DECAY", help="average the weights")
    add("--compile", action=BooleanOptionalAction, default=None, help="on unless --no-compile")
    add("--tensorboard", metavar="FOLDER", help="write TensorBoard events")
    add("--csv", metavar="FILE", help="write a row for each epoch")
    add("--json", metavar="FILE", help="write a line for each step and epoch")
    add("--board", metavar="FOLDER", help="write the run for weft board")
    add("--plot", metavar="FILE.png", help="draw the losses at the end")
    add("--quiet", action="store_true", default=None, help="no progress")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    >>> main(["info", "--quiet"])
    0
    """
    flags = None
    try:
        flags = parser().parse_args(arguments)
        if flags.command is None:
            parser().print_help()
            return 0
        return int(flags.run(flags) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Mistake as mistake:
        sys.stderr.write(f"error: {mistake}\n")
        return mistake.code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:
        return 1
    except Exception as error:
        sys.stderr.write(_error_text(error, getattr(flags, "traceback", False)))
        return 1


def _error_text(error: Exception, whole: bool) -> str:
    """An error of a program: with the user's own lines, or with all."""
    if whole:
        return "".join(traceback.format_exception(error))
    told = f"error: {error}" if isinstance(error, wf.WeftError) else _last_line(error)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_own(f.filename)]
    if isinstance(error, wf.WeftError) or not frames:
        return f"{told}\n"
    return "".join(traceback.format_list(frames)) + f"{told}\n"


def _last_line(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).rstrip()


def _is_own(filename: str) -> bool:
    library = Path(__file__).parents[1]
    return Path(filename).is_relative_to(library) or filename.startswith("<frozen")
