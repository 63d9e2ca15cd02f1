"""Makes the blocking client out of the async one: `python tools/unasync.py [--check]`.

Async and blocking code never exist twice by hand: this replaces words, ruff formats, a test sees that the result is
what is checked in.
"""

import re
import subprocess
import sys
from pathlib import Path

ENGINE = Path(__file__).parents[1] / "src" / "kappa" / "engine"
SOURCE, TARGET = ENGINE / "async_client.py", ENGINE / "client.py"

WORDS = {
    r"\basync (def|with|for)\b": r"\1",
    r"\bawait ": "",
    r"\bAsync(Client|Connection|Pool|Generator|Together)\b": r"\1",
    r"\basynccontextmanager\b": "contextmanager",
    r"\bAbstractAsyncContextManager\b": "AbstractContextManager",
    r"\b__a(enter|exit)__\b": r"__\1__",
    r"\brun_async\b": "run",
    r"\bimport asyncio\b": "import time",
    r"\basyncio\.sleep\b": "time.sleep",
}

DOCSTRING = '''"""The blocking client. Generated from async_client.py by `make generate`; edit that one."""'''


def generate() -> str:
    text = SOURCE.read_text(encoding="utf-8")
    text = re.sub(r'\A""".*?"""', DOCSTRING, text, count=1, flags=re.DOTALL)
    for pattern, word in WORDS.items():
        text = re.sub(pattern, word, text)
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--quiet", "--fix-only", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [str(ruff), *command, "--stdin-filename", str(TARGET), "-"],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        text = done.stdout
    return text


if __name__ == "__main__":
    made = generate()
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text(encoding="utf-8") == made else f"{TARGET.name} is stale: run `make generate`")
    TARGET.write_text(made, encoding="utf-8")
