"""System calls that a tool has no need of, as a filter for bubblewrap: made by libseccomp, where that is installed."""

import ctypes
import errno
import tempfile
from functools import cache

_LIBRARY = "libseccomp.so.2"
_ALLOW = 0x7FFF0000
_EQUAL, _MASKED_EQUAL, _GREATER = 4, 7, 6
_NEW_USER_NAMESPACE = 0x10000000
_TERMINAL_INPUT = 0x5412, 0x541C

# Those of Flatpak and of Docker's profile: the kernel's administration, its keyrings, and what breakouts begin with.
_REFUSED = (
    "acct", "add_key", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl", "kcmp",
    "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "migrate_pages", "modify_ldt", "mount",
    "mount_setattr", "move_mount", "move_pages", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree",
    "perf_event_open", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl",
    "quotactl_fd", "reboot", "request_key", "setns", "settimeofday", "swapoff", "swapon", "syslog", "umount", "umount2",
    "uselib", "userfaultfd", "vhangup",
)  # fmt: skip
# Programs know how to do without these where a kernel is older. Memory of a memfd or of System V belongs to no process,
# so that nobody who adds up what processes hold would see it; POSIX shared memory is in /dev/shm.
_UNKNOWN = (
    "clone3", "io_uring_enter", "io_uring_register", "io_uring_setup", "memfd_create", "memfd_secret", "msgget",
    "shmget",
)  # fmt: skip
_UNIX, _IPV4, _IPV6, _NETLINK = 1, 2, 10, 16


class _Compare(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


@cache
def program() -> bytes | None:
    """The filter for this machine, or None if nothing here can make it."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    if not (context := library.seccomp_init(ctypes.c_uint32(_ALLOW))):
        return None
    context = ctypes.c_void_p(context)

    def refuse(name: str, code: int, *compared: tuple[int, int, int, int]) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number == -1:  # this library is older than the call
            return
        conditions = (_Compare * len(compared))(*(_Compare(*one) for one in compared))
        action = ctypes.c_uint32(0x00050000 | code)
        if library.seccomp_rule_add_array(context, action, number, len(compared), conditions) < 0:
            raise OSError(f"libseccomp knows no rule for {name}")

    try:
        for name in _REFUSED:
            refuse(name, errno.EPERM)
        for name in _UNKNOWN:
            refuse(name, errno.ENOSYS)
        for name in ("clone", "unshare"):
            refuse(name, errno.EPERM, (0, _MASKED_EQUAL, _NEW_USER_NAMESPACE, _NEW_USER_NAMESPACE))
        for request in _TERMINAL_INPUT:
            refuse("ioctl", errno.EPERM, (1, _MASKED_EQUAL, 0xFFFFFFFF, request))
        for family in range(_NETLINK):
            if family not in (_UNIX, _IPV4, _IPV6):
                refuse("socket", errno.EAFNOSUPPORT, (0, _EQUAL, family, 0))
        refuse("socket", errno.EAFNOSUPPORT, (0, _GREATER, _NETLINK, 0))
        with tempfile.TemporaryFile() as file:
            if library.seccomp_export_bpf(context, file.fileno()) < 0:
                return None
            file.seek(0)
            return file.read()
    except (OSError, AttributeError):
        return None
    finally:
        library.seccomp_release(context)
