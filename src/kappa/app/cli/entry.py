"""Where `kg` begins, and where every error becomes one clear line."""

import sys
from typing import Any

FAILED = 1
NONSENSE = 2
NO_SERVER = 3
NOT_ALLOWED = 4
INTERRUPTED = 130

EXIT_CODES = {
    0: "done",
    FAILED: "failed, and said why",
    NONSENSE: "the command line makes no sense, or a payload or password that was handed over can't be read",
    NO_SERVER: "the server does not run, doesn't answer, or is about to stop",
    NOT_ALLOWED: "the server knows no such token, or its user may not do this",
    INTERRUPTED: "interrupted",
}


def main() -> None:
    try:
        from kappa.app.cli.commands import app

        # Alone it would draw a box around what was typed wrong.
        code = app(prog_name="kg", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
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
        if not isinstance(error, KappaError):
            raise
        sys.stderr.write(f"kg: {printable(' '.join(str(error).split()))}\n")
        sys.exit(_exit_code(error))


def _usage(error: Any) -> str:
    """What was typed wrong, and where help is; nothing where the help was shown in its place."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    said = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    where = error.ctx.command_path if getattr(error, "ctx", None) is not None else "kg"
    return f"kg: {said[:1].lower()}{said[1:]} ({where} --help)\n"


def _exit_code(error: Exception) -> int:
    from kappa.app.cli.values import BadInput
    from kappa.app.remote import ServerNotFound, ServerRefused

    match error:
        case BadInput():
            return NONSENSE
        case ServerNotFound():
            return NO_SERVER
        case ServerRefused() if error.not_now:
            return NO_SERVER
        case ServerRefused(status=401 | 403):
            return NOT_ALLOWED
        case _:
            return FAILED


if __name__ == "__main__":
    main()
