"""Where `kg` begins, and where every error becomes one clear line."""

import os
import re
import sys
import threading
from typing import Any, NoReturn

FAILED = 1
NONSENSE = 2
NO_SERVER = 3
NOT_ALLOWED = 4
INTERRUPTED = 130

HANDLER = "kappa-job-"
"""Threads of this name run handlers (`kappa.engine.threads`, which not every command has to load)."""

EXIT_CODES = {
    0: "done",
    FAILED: "failed, and said why",
    NONSENSE: "the command line makes no sense, or a payload or password that was handed over can't be read",
    NO_SERVER: "the server does not run, doesn't answer, or is about to stop",
    NOT_ALLOWED: "the server knows no such token, or its user may not do this",
    INTERRUPTED: "interrupted",
}

_PLAINER = {
    "Value error, ": "",
    r"Input should be a valid integer, .*": "it is no whole number",
    r"Input should be a valid number, .*": "it is no number",
    r"Input should be a valid UUID, .*": "it is no id, which looks like 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
    r"(Input|String) should ": "it should ",
    r"at least 1 character\b": "at least one character",
}
"""What libraries say of a value, as one would say it to a person."""


def main() -> None:
    # Closed by the shell (`>&-`), where the first file or socket would else get its number.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        from kappa.app.cli.commands import app

        # Alone it would draw a box around what was typed wrong.
        code = app(prog_name="kg", standalone_mode=False)
        sys.stdout.flush()  # here a full disk is an error of one line; at the interpreter's end it would be a traceback
        _end(code if isinstance(code, int) else 0)
    except ModuleNotFoundError as error:
        sys.exit(f"kg: {error.name} is missing: this command needs the extra kappa[app]")
    except KeyboardInterrupt:
        sys.stderr.write("kg: interrupted\n")
        sys.exit(INTERRUPTED)
    except Exception as error:
        # What can go wrong is known where it went wrong; to name it here would load it for every command.
        import typer

        from kappa.app.cli.show import printable
        from kappa.pg import KappaError

        if isinstance(error, typer.Abort):
            sys.exit("kg: nothing was done")
        if hasattr(error, "format_message"):  # what is typed wrong; Typer's word for it has been in several places
            sys.stderr.write(_usage(error))
            sys.exit(NONSENSE)
        if isinstance(error, OSError) and error.strerror is not None:
            _stop_writing()
            sys.exit(f"kg: {printable(error.filename or 'the output')}: {error.strerror}")
        if not isinstance(error, KappaError):
            raise
        sys.stderr.write(f"kg: {printable(' '.join(str(error).split()))}\n")
        sys.exit(_exit_code(error))


def _end(code: int) -> NoReturn:
    """The interpreter's end takes down what a handler still uses that outlived its grace: a library in C may abort."""
    if any(thread.name.startswith(HANDLER) and thread.is_alive() for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _usage(error: Any) -> str:
    """What was typed wrong, and where help is; nothing where the help was shown in its place."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    said = " ".join(error.format_message().split()).rstrip(".")
    for of_a_library, plain in _PLAINER.items():
        said = re.sub(of_a_library, plain, said)
    where = error.ctx.command_path if getattr(error, "ctx", None) is not None else "kg"
    return f"kg: {said[:1].lower()}{said[1:]} ({where} --help)\n"


def _stop_writing() -> None:
    """Keep the interpreter from trying once more, at its end, to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(error: Exception) -> int:
    from kappa.app.cli.values import BadInput
    from kappa.app.remote import BadToken, ServerNotFound, ServerRefused

    match error:
        case BadInput():
            return NONSENSE
        case ServerNotFound():
            return NO_SERVER
        case ServerRefused() if error.not_now:
            return NO_SERVER
        case BadToken() | ServerRefused(status=401 | 403):
            return NOT_ALLOWED
        case _:
            return FAILED


if __name__ == "__main__":
    main()
