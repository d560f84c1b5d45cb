// launch: starts one command hardened, as the sandbox's user.
//
//   launch OPTIONS DIR PROGRAM [ARG...]
//
// The environment is the command's own, handed on as it is: nothing here reads
// it but PATH, and that only after root is given up. OPTIONS is a row of
// letters with a decimal number each:
//
//   u  uid             g  gid              m  the mark: the only group besides
//   n  most open files p  most processes of this uid (0: as inherited)
//   o  oom_score_adj   k  nice value, so that the agent comes first
//   t1 descriptor 0 becomes the controlling terminal
//   x1 a tracer may not rewrite system calls
//
// Descriptor 3 is the status pipe. A failed step writes {'E', step, errno};
// {'R', 0, 0} goes out right before the program is executed. End of file after
// 'R' without 'E' means executed; end of file without either means killed.
//
// The order of the steps is not free: oom_score_adj before the uid (afterwards
// the file is root's), setgroups before the filter (which denies it), the
// filter before the uid (what follows can be stopped by other commands, so as
// little as possible does), the directory after it (judged as the user).
#include "sys.h"

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/prctl.h>
#include <linux/ptrace.h>
#include <linux/resource.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <asm/ioctls.h>
#include <stddef.h>

enum step {
	STEP_OPTIONS = 1,
	STEP_SESSION,
	STEP_TERMINAL,
	STEP_LIMITS,
	STEP_OOM,
	STEP_DESCRIPTORS,
	STEP_GROUPS,
	STEP_GID,
	STEP_NO_NEW_PRIVS,
	STEP_FILTER,
	STEP_UID,
	STEP_CAPABILITIES,
	STEP_DIRECTORY,
	STEP_EXEC,
};

enum { STATUS = 3, SIGNALS = 31, LAST_CAPABILITY = 63, BUSY_TRIES = 6 };

static void report(char kind, int step, long error) {
	unsigned char record[4] = {kind, step, error & 0xff, error >> 8};
	sys3(__NR_write, STATUS, record, sizeof record);
}

static void need(int step, long result) {
	if (result >= 0) return;
	report('E', step, -result);
	quit(127);
}

// ---- options

static long option[128];

static void read_options(const char *s) {
	while (*s) {
		unsigned char key = *s++;
		long value = 0;
		if (key >= sizeof option / sizeof *option || *s < '0' || *s > '9') need(STEP_OPTIONS, -EINVAL);
		while (*s >= '0' && *s <= '9') value = value * 10 + (*s++ - '0');
		option[key] = value;
	}
	// Root would be a command that nothing holds.
	if (!option['u'] || !option['g'] || !option['m']) need(STEP_OPTIONS, -EINVAL);
}

// ---- as root

// Ignored signals and the mask survive an execve; handlers do not. Nobody
// inherits ignored real-time signals, and each call costs 80 us under gVisor.
static void reset_signals(void) {
	u64 action[4] = {0}, none = 0;
	for (int n = 1; n <= SIGNALS; n++) sys4(__NR_rt_sigaction, n, action, 0, sizeof none);
	sys4(__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &none, 0, sizeof none);
}

static void session(void) {
	need(STEP_SESSION, sys0(__NR_setsid));
	if (option['t']) need(STEP_TERMINAL, sys3(__NR_ioctl, 0, TIOCSCTTY, 0));
}

// Lowers a limit; one that is lower already stays.
static void limit(int resource, u64 most) {
	u64 value[2];
	need(STEP_LIMITS, sys4(__NR_prlimit64, 0, resource, 0, value));
	if (value[1] > most) value[1] = most;
	value[0] = value[1];
	need(STEP_LIMITS, sys4(__NR_prlimit64, 0, resource, value, 0));
}

static void limits(void) {
	limit(RLIMIT_CORE, 0);
	if (option['n']) limit(RLIMIT_NOFILE, option['n']);
	if (option['p']) limit(RLIMIT_NPROC, option['p']);
	if (option['k']) need(STEP_LIMITS, sys3(__NR_setpriority, 0 /* PRIO_PROCESS */, 0, option['k']));
}

static void oom_score(void) {
	char text[20];
	int at = sizeof text;
	long value = option['o'];
	if (!value) return;
	for (; value; value /= 10) text[--at] = '0' + value % 10;
	long fd = sys4(__NR_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
	need(STEP_OOM, fd);
	need(STEP_OOM, sys3(__NR_write, fd, text + at, sizeof text - at));
	sys1(__NR_close, fd);
}

// gVisor (2022) refuses a last descriptor above the signed range.
static void descriptors(void) {
	need(STEP_DESCRIPTORS, sys3(__NR_fcntl, STATUS, F_SETFD, 1 /* FD_CLOEXEC */));
	need(STEP_DESCRIPTORS, sys3(__NR_close_range, STATUS + 1, 0x7fffffff, 0));
	sys1(__NR_umask, 022);
}

static void groups(void) {
	u32 mark = option['m'];
	need(STEP_GROUPS, sys2(__NR_setgroups, 1, &mark));
	need(STEP_GID, sys3(__NR_setresgid, option['g'], option['g'], option['g']));
}

// Both may be refused: without CAP_SETPCAP the bounding set stays, and gVisor
// knows no ambient set. no_new_privs makes either harmless.
static void drop_raisable(void) {
	sys5(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	for (int cap = 0; cap <= LAST_CAPABILITY; cap++)
		if (sys5(__NR_prctl, PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) break;
}

// ---- the filter

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#else
#define NATIVE AUDIT_ARCH_AARCH64
#endif

// Every new namespace, and CLONE_PARENT: a child put beside its parent would be
// a child of the agent that the agent did not start.
#define BAD_CLONE                                                                       \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | \
	 CLONE_NEWPID | CLONE_NEWNET | CLONE_PARENT)

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define ON(value, then) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1), then
#define ON_BITS(mask, then) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask, 0, 1), then
// The next n instructions are for this value only.
#define FOR(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, n)

#if defined(__x86_64__)
#define REFUSE_FOREIGN BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), REFUSE(ENOSYS), /* x32 */
#else
#define REFUSE_FOREIGN
#endif

#define RULES                                                                                  \
	LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE, 1, 0), REFUSE(ENOSYS),         \
	LOAD(nr), REFUSE_FOREIGN                                                               \
	ON(__NR_unshare, REFUSE(EPERM)),                                                       \
	ON(__NR_setns, REFUSE(EPERM)),                                                         \
	ON(__NR_setgroups, REFUSE(EPERM)),                                                     \
	ON(__NR_clone3, REFUSE(ENOSYS)), /* its flags lie in memory, out of a filter's sight */ \
	FOR(__NR_clone, 4), LOAD(args[0]), ON_BITS(BAD_CLONE, REFUSE(EPERM)), ALLOW

// Kernels before 4.8, and gVisor, ask the filter before the tracer, who may then
// change the call: so no stop at system calls, and no seccomp events.
#define TRACER_RULES                                                                  \
	FOR(__NR_ptrace, 12), LOAD(args[0]),                                          \
	ON(PTRACE_SYSCALL, REFUSE(EPERM)),                                            \
	ON(31 /* PTRACE_SYSEMU */, REFUSE(EPERM)),                                    \
	ON(32 /* PTRACE_SYSEMU_SINGLESTEP */, REFUSE(EPERM)),                         \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PTRACE_SETOPTIONS, 1, 0),                 \
	FOR(PTRACE_SEIZE, 3),                                                         \
	LOAD(args[3]), ON_BITS(1 << PTRACE_EVENT_SECCOMP, REFUSE(EPERM))

static struct sock_filter rules[] = {RULES, ALLOW};
static struct sock_filter tracer_rules[] = {RULES, TRACER_RULES, ALLOW};

static void install_filter(void) {
	struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
	if (option['x']) program = (struct sock_fprog){sizeof tracer_rules / sizeof *tracer_rules, tracer_rules};
	need(STEP_NO_NEW_PRIVS, sys5(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	long result = sys3(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
	// gVisor (2022) does not know the flag.
	if (result == -EINVAL) result = sys3(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
	need(STEP_FILTER, result);
}

// ---- as the user

static void give_up_root(void) {
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2] = {{0}};
	need(STEP_UID, sys3(__NR_setresuid, option['u'], option['u'], option['u']));
	need(STEP_CAPABILITIES, sys2(__NR_capset, &header, none));
}

// A file that somebody still has open for writing is busy for a moment.
static long execute(const char *path, char **argv, char **envp) {
	long result = 0;
	for (int i = 0; i < BUSY_TRIES; i++) {
		result = sys3(__NR_execve, path, argv, envp);
		if (result != -ETXTBSY) break;
		pause_ms(1 << i);
	}
	return result;
}

static const char *search_path(char **envp) {
	for (; *envp; envp++) {
		const char *e = *envp;
		if (e[0] == 'P' && e[1] == 'A' && e[2] == 'T' && e[3] == 'H' && e[4] == '=') return e + 5;
	}
	return "/usr/local/bin:/usr/bin:/bin";
}

// Tries every directory of PATH as execvp does: a refusal is told only when no
// other directory has the program.
static long execute_searching(char **argv, char **envp) {
	static char path[4096];
	const char *name = argv[0], *dir = search_path(envp);
	u64 name_length = length(name);
	long told = -ENOENT;
	for (;; dir++) {
		u64 n = 0;
		while (dir[n] && dir[n] != ':') n++;
		if (n + name_length + 2 <= sizeof path) {
			memcpy(path, dir, n);
			path[n] = '/';
			memcpy(path + n + (n > 0), name, name_length + 1);
			long result = execute(path, argv, envp);
			if (result == -EACCES) told = result;
			else if (result != -ENOENT && result != -ENOTDIR) return result;
		}
		dir += n;
		if (!*dir) return told;
	}
}

static int has_slash(const char *s) {
	while (*s && *s != '/') s++;
	return *s;
}

__attribute__((noreturn, used)) void start(long *stack) {
	long argc = stack[0];
	char **argv = (char **)(stack + 1), **envp = argv + argc + 1;
	if (argc < 4 || !argv[3][0]) need(STEP_OPTIONS, -EINVAL);
	reset_signals();
	read_options(argv[1]);
	session();
	limits();
	oom_score();
	descriptors();
	groups();
	drop_raisable();
	install_filter();
	give_up_root();
	need(STEP_DIRECTORY, sys1(__NR_chdir, argv[2]));
	argv += 3;
	report('R', 0, 0);
	need(STEP_EXEC, has_slash(argv[0]) ? execute(argv[0], argv, envp) : execute_searching(argv, envp));
	quit(127);
}
