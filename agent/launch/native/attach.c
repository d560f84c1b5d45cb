// attach: joins stdio to the agent's socket, for one worker's stream.
//
//   attach SOCKET
//
// One thread and no C library, so that it starts when the sandbox has no
// process left to give (a Go program aborts there). It ends at the end of its
// input: with a half-closed stream it would go on draining a flooding agent
// into nobody's hands. It may be started before the agent listens, and waits a
// bounded time for the socket.
#include "sys.h"

#include <linux/poll.h>
#include <linux/socket.h>
#include <linux/un.h>

enum { BUFFER = 64 << 10, TRIES = 500, TRY_MS = 20, AF_UNIX = 1, SOCK_STREAM = 1, SOCK_CLOEXEC = O_CLOEXEC };
enum { EXIT_DONE = 0, EXIT_USAGE = 2, EXIT_NO_AGENT = 3, EXIT_BROKEN = 4 };

// One direction. Bytes of buffer between at and end wait to be written.
struct flow {
	int from, to;
	u64 at, end;
	char buffer[BUFFER];
};

static struct flow up, down;

static __attribute__((noreturn)) void fail(int code, const char *text) {
	sys3(__NR_write, 2, text, length(text));
	quit(code);
}

static int dial(const char *path) {
	struct sockaddr_un address = {AF_UNIX, {0}};
	u64 n = length(path);
	if (n >= sizeof address.sun_path) fail(EXIT_USAGE, "attach: the socket's path is too long\n");
	memcpy(address.sun_path, path, n);
	for (int i = 0; i < TRIES; i++) {
		long fd = sys3(__NR_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0) break;
		long result = sys3(__NR_connect, fd, &address, sizeof address);
		if (result == 0) return fd;
		sys1(__NR_close, fd);
		if (result != -ENOENT && result != -ECONNREFUSED && result != -EAGAIN) break;
		pause_ms(TRY_MS);
	}
	fail(EXIT_NO_AGENT, "attach: the agent does not answer on its socket\n");
}

static void nonblocking(int fd) {
	long flags = sys2(__NR_fcntl, fd, F_GETFL);
	if (flags >= 0) sys3(__NR_fcntl, fd, F_SETFL, flags | O_NONBLOCK);
}

static int later(long result) { return result == -EAGAIN || result == -EINTR; }

// Writes what waits; what the other side does not take now stays.
static void flush(struct flow *f) {
	while (f->at < f->end) {
		long n = sys3(__NR_write, f->to, f->buffer + f->at, f->end - f->at);
		if (later(n)) return;
		if (n <= 0) quit(EXIT_BROKEN);
		f->at += n;
	}
}

// Reads once and writes at once. Called only when nothing waits.
static void move(struct flow *f) {
	long n = sys3(__NR_read, f->from, f->buffer, BUFFER);
	if (later(n)) return;
	if (n == 0) quit(EXIT_DONE);
	if (n < 0) quit(EXIT_BROKEN);
	f->at = 0;
	f->end = n;
	flush(f);
}

static int waits(const struct flow *f) { return f->at < f->end; }

static void wait_for(struct pollfd *p, int n) {
	long result = sys5(__NR_ppoll, p, n, 0, 0, 8);
	if (result < 0 && result != -EINTR) quit(EXIT_BROKEN);
}

// stdin and stdout stay in the set without events while their side waits: a
// hang-up is then seen under back-pressure as well, and ends the program.
static void splice_all(int socket) {
	struct pollfd p[3] = {{0, 0, 0}, {1, 0, 0}, {socket, 0, 0}};
	const short gone = POLLHUP | POLLERR | POLLNVAL;
	for (;;) {
		p[0].events = waits(&up) ? 0 : POLLIN;
		p[1].events = waits(&down) ? POLLOUT : 0;
		p[2].events = (waits(&up) ? POLLOUT : 0) | (waits(&down) ? 0 : POLLIN);
		// A socket that hung up would wake us for nothing until stdout takes the rest.
		p[2].fd = p[2].events ? socket : -1;
		wait_for(p, 3);
		if (p[1].revents & gone) quit(EXIT_BROKEN);
		if (waits(&up) && p[0].revents & gone) quit(EXIT_DONE);
		if (waits(&up)) flush(&up);
		else if (p[0].revents) move(&up);
		if (waits(&down)) flush(&down);
		else if (p[2].revents & (POLLIN | gone)) move(&down);
	}
}

__attribute__((noreturn, used)) void start(long *stack) {
	char **argv = (char **)(stack + 1);
	if (stack[0] != 2) fail(EXIT_USAGE, "usage: attach SOCKET\n");
	int socket = dial(argv[1]);
	nonblocking(0);
	nonblocking(1);
	nonblocking(socket);
	up.to = down.from = socket;
	down.to = 1;
	splice_all(socket);
	quit(EXIT_DONE);
}
