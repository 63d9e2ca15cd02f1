"""Where `kg` begins, and where every error becomes one clear line.

Exit codes: 0 done; 1 failed, and said why; 2 the command line makes no sense, or a payload that can't be read; 3 the
server does not run, or can't answer now; 4 the server knows no such token, or its user may not do this;
130 interrupted.
"""

import sys

FAILED = 1
NONSENSE = 2
NO_SERVER = 3
NOT_ALLOWED = 4
INTERRUPTED = 130


def main() -> None:
    try:
        from kappa.app.cli.commands import app
    except ModuleNotFoundError as error:
        sys.exit(f"kg: {error.name} is missing: the command line needs `pip install 'kappa[app]'`")
    from kappa.app.cli.show import printable
    from kappa.pg import KappaError

    try:
        app()
    except KappaError as error:
        sys.stderr.write(f"kg: {printable(' '.join(str(error).split()))}\n")
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.stderr.write("kg: interrupted\n")
        sys.exit(INTERRUPTED)


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
