"""What is wrong with a value, said to somebody who reads no regular expressions.

Names of all sorts have patterns of one form: characters that may come first, those that may follow, and how many. A
pattern of another form is told as it stands.
"""

import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"\^\[(?P<first>[^\]^]+)\]\[(?P<rest>[^\]^]+)\]\{0,(?P<more>\d+)\}\$")
_NO_NUL = r"^[^\x00]*$"
_RANGES = {"A-Za-z": "letters", "a-z": "small letters", "A-Z": "capital letters", "0-9": "digits"}


def what_is_wrong(fault: Mapping[str, Any]) -> str:
    """One error of pydantic's, in a line."""
    if fault["type"] == "model_attributes_type":
        return "must be a JSON object"
    if fault["type"] == "value_error" and "error" in fault.get("ctx", {}):
        # Our own words, without the library's before them.
        return str(fault["ctx"]["error"])
    if fault["type"] != "string_pattern_mismatch":
        return str(fault["msg"])
    pattern = str(fault["ctx"]["pattern"])
    if pattern == _NO_NUL:
        return "a NUL character can't be kept"
    if (name := _NAME.fullmatch(pattern)) is None:
        return str(fault["msg"])
    first, rest = _characters(name["first"]), _characters(name["rest"])
    begins = " or ".join(f"a {one.removesuffix('s')}" for one in first)
    return f"it should begin with {begins} and have only {_listed(rest)}, {int(name['more']) + 1} at most"


def _characters(allowed: str) -> list[str]:
    found: list[str] = []
    for written, spoken in _RANGES.items():
        if written in allowed:
            allowed = allowed.replace(written, "")
            found.append(spoken)
    return [*found, *allowed]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
