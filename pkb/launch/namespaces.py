"""Linux namespaces, mounts and capabilities by their system calls; every failure says which call it was."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

NEW_FILES = 0x00020000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000

_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY = 1
# Numbers of calls that every architecture shares.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ = struct.Struct("16sh14x")

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move this process (for `NEW_PROCESSES`: its future children) into fresh namespaces."""
    _require(_libc.unshare(flags), f"unshare({flags:#x})")


def join(fd: int, flags: int) -> None:
    """Move this process, or its future children, into the namespace that a descriptor stands for."""
    _require(_libc.setns(fd, flags), f"setns({flags:#x})")


def map_users(pid: int, *, everyone: bool) -> None:
    """Give the ids of the outside to a process that has just made a user namespace: all of them, or ours alone."""
    uid, gid = os.geteuid(), os.getegid()
    if not everyone:
        Path(f"/proc/{pid}/setgroups").write_text("deny")
    Path(f"/proc/{pid}/uid_map").write_text("0 0 4294967295" if everyone else f"{uid} {uid} 1")
    Path(f"/proc/{pid}/gid_map").write_text("0 0 4294967295" if everyone else f"{gid} {gid} 1")


def keep_mounts_to_ourselves() -> None:
    """Let no mount that is made here show elsewhere, nor the other way round."""
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE, "")


def mount_memory(path: str, *, mode: str = "1777", size: str = "50%") -> None:
    """Cover a folder with an empty one in memory."""
    _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode={mode},size={size}")


def mount_proc(path: str) -> None:
    """Show the processes of this process namespace only."""
    _mount("proc", path, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")


def bind(source: str, target: str) -> None:
    """Make a file or folder appear at a second place."""
    _mount(source, target, "", _MS_BIND, "")


def hold(path: str) -> int:
    """A descriptor of what lies at a path, to be put elsewhere by `place` after the path has been covered."""
    fd = _libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)
    return int(_require(fd, f"open_tree({path})"))


def place(fd: int, path: str) -> None:
    """Put what `hold` has held at a path that exists, and close the descriptor."""
    try:
        done = _libc.syscall(_SYS_MOVE_MOUNT, fd, b"", _AT_FDCWD, os.fsencode(path), _MOVE_MOUNT_F_EMPTY_PATH)
        _require(done, f"move_mount({path})")
    finally:
        os.close(fd)


def set_writable(path: str, writable: bool, *, below: bool = False) -> None:
    """Let a mount be written to or not; `below` includes all mounts under it."""
    sets = (ctypes.c_uint64 * 4)(0 if writable else _MOUNT_ATTR_RDONLY, _MOUNT_ATTR_RDONLY if writable else 0, 0, 0)
    flags = _AT_RECURSIVE if below else 0
    done = _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, ctypes.byref(sets), 32)
    _require(done, f"mount_setattr({path})")


def raise_loopback() -> None:
    """Bring up the loopback interface of a fresh network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
        name, flags = _IFREQ.unpack(answer)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ.pack(name, flags | _IFF_UP))


def end_with_parent(signal_number: int) -> None:
    """Get a signal when the process that made this one ends."""
    _require(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _require(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def drop_capabilities() -> None:
    """Give up every capability for good, also for programs that are run from here on."""
    _require(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        _require(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), f"prctl(PR_CAPBSET_DROP, {capability})")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    _require(_libc.capset(ctypes.byref(header), ctypes.byref(none)), "capset")


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    done = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _require(done, f"mount({source} on {target})")


def _require(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
