"""Where `kg` begins, and where every error becomes one clear line.

Exit codes: 0 done; 1 failed, and said why; 2 the command line makes no sense; 3 the server does not run
(`kg db status`); 130 interrupted.
"""

import sys


def main() -> None:
    try:
        from kappa.app.cli.commands import app
    except ModuleNotFoundError as error:
        sys.exit(f"kg: {error.name} is missing: the command line needs `pip install 'kappa[app]'`")
    from kappa.pg import KappaError

    try:
        app()
    except KappaError as error:
        sys.exit(f"kg: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        sys.stderr.write("kg: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
