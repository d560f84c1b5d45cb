"""Tries one way out of the filter and prints the error's name, or OK."""
import ctypes
import errno
import mmap
import os
import platform
import signal
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

X86 = platform.machine() == "x86_64"
NUMBERS = {"clone": 56, "unshare": 272, "clone3": 435, "getppid": 110}
if not X86:
    NUMBERS = {"clone": 220, "unshare": 97, "clone3": 435, "getppid": 173}
NEWUSER, NEWNET, PARENT, SIGCHLD = 0x10000000, 0x40000000, 0x8000, 17


def name(result, code):
    return "OK" if result >= 0 else errno.errorcode.get(code, str(code))


def call(number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in args])
    return result, ctypes.get_errno()


def clone(flags):
    result, code = call(NUMBERS["clone"], flags | SIGCHLD, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    return name(result, code)


def in_thread():
    out = []
    t = threading.Thread(target=lambda: out.append(name(*call(NUMBERS["unshare"], NEWUSER))))
    t.start()
    t.join()
    return out[0]


def machine_code(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    return name(result, -result)


def int80():
    # push rbx; mov eax, 310 (i386 unshare); mov ebx, CLONE_NEWUSER; int 0x80; pop rbx; ret
    return machine_code(b"\x53\xb8\x36\x01\x00\x00\xbb\x00\x00\x00\x10\xcd\x80\x5b\xc3")


class Registers(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulong) for n in (
        "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss "
        "fs_base gs_base ds es fs gs").split()]


GETREGS, SETREGS, CONT, SYSCALL, SETOPTIONS, TRACEME = 12, 13, 7, 24, 0x4200, 0


def ptrace(request, pid, address=0, data=0):
    ctypes.set_errno(0)
    if libc.ptrace(request, pid, address, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def trace_getppid():
    """Installs a filter of the command's own that stops at getppid for the tracer."""
    rules = b""
    for code, jt, jf, k in [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBERS["getppid"]), (0x06, 0, 0, 0x7FF00000), (0x06, 0, 0, 0x7FFF0000)]:
        rules += code.to_bytes(2, "little") + bytes([jt, jf]) + k.to_bytes(4, "little")
    buffer = ctypes.create_string_buffer(rules, len(rules))
    program = Program(4, ctypes.addressof(buffer))
    if libc.prctl(22, 2, ctypes.byref(program), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def rewrite(by_filter):
    """A child calls getppid; its tracer makes unshare(CLONE_NEWUSER) of it."""
    read, write = os.pipe()
    tracer = os.getpid()
    child = os.fork()
    if child == 0:
        ptrace(TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        if by_filter:
            trace_getppid()
        result, code = call(NUMBERS["getppid"], NEWUSER)
        # The real getppid answers the tracer's number: then nothing was rewritten.
        os.write(write, ("NOT-REWRITTEN" if result == tracer else name(result, code)).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    try:
        if by_filter:
            ptrace(SETOPTIONS, child, 0, 0x80)
        for _ in range(2000):
            ptrace(CONT if by_filter else SYSCALL, child)
            _, status = os.waitpid(child, 0)
            if not os.WIFSTOPPED(status):
                break
            regs = Registers()
            ptrace(GETREGS, child, 0, ctypes.addressof(regs))
            if regs.orig_rax == NUMBERS["getppid"]:
                regs.orig_rax, regs.rdi = NUMBERS["unshare"], NEWUSER
                ptrace(SETREGS, child, 0, ctypes.addressof(regs))
    except OSError as e:
        os.kill(child, signal.SIGKILL)
        return errno.errorcode[e.errno]
    return os.read(read, 100).decode()


print({
    "unshare": lambda: name(*call(NUMBERS["unshare"], NEWUSER)),
    "clone-newuser": lambda: clone(NEWUSER),
    "clone-newnet": lambda: clone(NEWNET),
    "clone-parent": lambda: clone(PARENT),
    "clone3": lambda: name(*call(NUMBERS["clone3"], 0, 0)),
    "thread-unshare": in_thread,
    "x32": lambda: name(*call(0x40000000 + NUMBERS["unshare"], NEWUSER)),
    "int80": int80,
    "rewrite-syscall": lambda: rewrite(False),
    "rewrite-seccomp": lambda: rewrite(True),
}[sys.argv[1]]())
