"""The command line's entry: threads, errors, exit codes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from types import ModuleType
from typing import cast

INTERRUPTED = 130


def main() -> None:
    """Run `retr`. Exits with 0, 1 (failed), 2 (usage) or 130 (interrupted)."""
    # libgomp's threads spin while they wait, and slow each other down many times over where cores are shared. It reads
    # this when it is loaded, so before numpy, torch or faiss.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _set_threads(sys.argv)
    # OpenVINO's converter of other frameworks' models, which no command needs: two thirds of its import, and telemetry.
    sys.modules.setdefault("openvino.tools.ovc", cast(ModuleType, None))
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a character gets its number
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        _say("interrupted")
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # All is written. A second Ctrl-C, or a library's clean-up, could change the exit code, and cleaning up takes longer
    # than a query's search.
    os._exit(code)


def _run() -> int:
    import typer

    from retrieval.cli.app import app
    from retrieval.errors import RetrError, UsageError

    debug = "--debug" in sys.argv
    usage_error = typer.BadParameter.__base__
    try:
        code = typer.main.get_command(app).main(prog_name="retr", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough; python must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except RetrError as error:
        _say(str(error), debug)
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:
        _say(_os_error(error), debug)
        return 1
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(str(error) + "\n")
            return 2
        if usage_error is not None and isinstance(error, usage_error):
            _say(_usage(error))
            return 2
        _say(f"unexpected {type(error).__name__}: {error} (run it again with --debug for the traceback)", debug)
        return 1


def _set_threads(arguments: list[str]) -> None:
    """Let --threads hold for every library: they read it when they are loaded, each its own name for it."""
    for place, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == "--threads":
            value = value or next(iter(arguments[place + 1 :]), "")
            if value.isascii() and value.isdigit() and int(value) > 0:  # what is no number the option refuses
                for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
                    os.environ[variable] = value


def _say(message: str, debug: bool = False) -> None:
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"retr: {message}\n")


def _os_error(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        at = f" at{where}" if where else ""
        return f"the disk is full{at}: make room and give the same command again"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        what = where or " a file"
        return f"no permission for{what}: {error.strerror}; give another place (-o, or RETR_CACHE for models)"
    return f"{error.strerror or error}{':' + where if where else ''}"


def _usage(error: Exception) -> str:
    message = str(getattr(error, "format_message", lambda: error)())
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "retr"
    return f"{' '.join(message.split())} (see: {command} --help)"


if __name__ == "__main__":
    main()
