"""Does what its argument names, and writes a line when it has begun."""
import ctypes
import os
import resource
import signal
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)


def ready(text="ready"):
    print(text, flush=True)


def storm(sig):
    while True:
        try:
            os.kill(-1, sig)
        except OSError:
            pass


def storm_stop():
    signal.alarm(60)
    ready()
    storm(signal.SIGSTOP)


def storm_continue():
    for _ in range(12):
        if os.fork() == 0:
            signal.alarm(60)
            storm(signal.SIGCONT)
    ready()
    time.sleep(60)


def dead_main_thread():
    threading.Thread(target=lambda: time.sleep(60)).start()
    ready()
    libc.syscall(ctypes.c_long(60 if os.uname().machine == "x86_64" else 93), 0)  # exit of this thread alone


def hostile_name():
    libc.prctl(15, b"x\nUid:\t0\t0\t0\t0", 0, 0, 0)
    ready()
    time.sleep(60)


def kill_everything():
    agent = os.getppid()
    for pid in (agent, 1):
        for sig in (signal.SIGKILL, signal.SIGSTOP):
            try:
                os.kill(pid, sig)
                return ready("signal %d to %d went through" % (sig, pid))
            except PermissionError:
                pass
    for path in ("mem", "exe", "fd/1", "cwd"):
        try:
            os.open("/proc/%d/%s" % (agent, path), os.O_RDONLY)
            return ready(path + " of the agent could be opened")
        except OSError:
            pass
    if libc.ptrace(16, agent, 0, 0) == 0:
        return ready("the agent can be traced")
    ready("refused")


def fill():
    """Makes processes until there is no number left, and stays."""
    for _ in range(2000):
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            break
    ready()
    time.sleep(60)


def bomb():
    """Spins and forks for ever, in every process."""
    ready()
    signal.alarm(60)
    os.close(1)
    while True:
        try:
            os.fork()
        except OSError:
            pass


GETREGS, SETREGS, SYSCALL, DETACH, TRACEME = 12, 13, 24, 17, 0
UNSHARE, SETGROUPS, GETPPID, NEWUSER = 272, 116, 110, 0x10000000


def ptrace(request, pid, address=0, data=None):
    if libc.ptrace(request, pid, ctypes.c_void_p(address), data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace %d" % request)


def escape():
    """The tracing parent turns the child's calls into a new user namespace and no groups.

    x86-64 only: orig_rax, rdi and rsi are words 15, 14 and 13 of the registers.
    """
    child = os.fork()
    if child == 0:
        ptrace(TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        libc.getppid()
        libc.getppid()
        if os.fork() == 0:
            time.sleep(60)
        time.sleep(60)
    os.waitpid(child, 0)
    for call, argument in ((UNSHARE, NEWUSER), (SETGROUPS, 0)):
        regs = (ctypes.c_ulong * 27)()
        while regs[15] != GETPPID:
            ptrace(SYSCALL, child)
            os.waitpid(child, 0)
            ptrace(GETREGS, child, 0, regs)
        regs[15], regs[14], regs[13] = call, argument, 0
        ptrace(SETREGS, child, 0, regs)
        ptrace(SYSCALL, child)  # to the call's end
        os.waitpid(child, 0)
        ptrace(GETREGS, child, 0, regs)
        if regs[10]:
            return ready("call %d: %d" % (call, regs[10]))
    ptrace(DETACH, child)
    time.sleep(0.5)
    ready("escaped")
    time.sleep(60)


globals()[sys.argv[1].replace("-", "_")]()
