"""The most memory that a process has had, as Linux counts it."""

from pathlib import Path


def forget_peak(pid: int | str = "self") -> int:
    """Begin anew, and give what it has now, in megabytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(pid)


def peak(pid: int | str = "self") -> int:
    """Megabytes of VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))


def children(pid: int | str = "self") -> list[int]:
    """Its child processes, whatever thread began them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def environment(pid: int | str) -> dict[str, str]:
    """What it began with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def runs(pid: int) -> bool:
    """Whether there is such a process; one that nobody has waited for is over."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
