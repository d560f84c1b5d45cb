package agent

import (
	"time"

	"shoal/sandbox"
)

// follower is one reader of a command: a stream of a session. Its fields but
// wake belong to whoever holds the command's lock.
type follower struct {
	command *command
	watch   bool
	primary bool  // governs the command
	offset  int64 // of the next byte to send
	credit  credit
	ended   bool // the end was sent

	roleNews  bool
	inputNews bool
	wake      chan struct{} // capacity 1
}

// follow adds a reader from an offset on; -1 = the oldest kept byte.
func (k *command) follow(from, window int64, watch bool) (*follower, Started, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if from < 0 {
		from = k.ring.start
	}
	if from > k.ring.next {
		return nil, Started{}, sandbox.InvalidField("offset", "%d is beyond the %d bytes that there are", from, k.ring.next)
	}
	f := &follower{
		command:   k,
		watch:     watch,
		offset:    from,
		credit:    newCredit(from, window),
		inputNews: k.input != nil,
		wake:      make(chan struct{}, 1),
	}
	k.followers[f] = struct{}{}
	if !watch {
		k.promoteLocked(f)
	}
	return f, Started{Info: k.infoLocked(), Boot: k.server.boot, Offset: from}, nil
}

// promoteLocked makes f the one that governs the command.
func (k *command) promoteLocked(f *follower) {
	k.demoteLocked()
	k.primary, f.primary = f, true
	k.heard = time.Now()
	k.dropping = k.request.Overflow == sandbox.OverflowDrop
	k.watchClientLocked()
}

// demoteLocked makes the primary reader a watcher.
func (k *command) demoteLocked() {
	if f := k.primary; f != nil {
		f.primary, f.roleNews = false, true
		k.primary = nil
		f.notify()
	}
}

// unfollow removes a reader.
func (k *command) unfollow(f *follower) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.followers, f)
	if k.primary == f {
		k.primary = nil
		k.watchClientLocked()
	}
}

// watchClientLocked starts or stops the grace of a command whose client is gone.
func (k *command) watchClientLocked() {
	k.grace.stop()
	k.grace = nil
	if k.primary != nil || k.end != nil || k.request.OnDisconnect != sandbox.DisconnectKill || !k.server.attached.Load() {
		return
	}
	k.grace = k.server.clock.after(k.request.Grace.Duration(), func() { k.stop(cause{reason: sandbox.Disconnected}) })
}

// attachment is called when a session has claimed the server or the last one
// is gone: graces begin anew with an owner and stand still without.
func (k *command) attachment() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.heard = time.Now()
	k.watchClientLocked()
}

// watchSilenceLocked sees to it that a primary that says nothing does not hold
// the command for ever.
func (k *command) watchSilenceLocked() {
	if k.quiet != nil {
		return
	}
	left := time.Until(k.heard.Add(silence))
	k.quiet = k.server.clock.after(max(left, time.Millisecond), func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.quiet = nil
		switch {
		case k.blocked == 0:
		case time.Since(k.heard) < silence, !k.server.attached.Load():
			if !k.server.attached.Load() {
				k.heard = time.Now()
			}
			k.watchSilenceLocked()
		default:
			k.demoteLocked()
			k.dropping = true
			k.room.Broadcast()
			k.watchClientLocked()
		}
	})
}

// wakeLocked tells every reader that there is something new.
func (k *command) wakeLocked() {
	for f := range k.followers {
		f.notify()
	}
}

func (f *follower) notify() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// inputChanged tells the readers what standard input takes now.
func (k *command) inputChanged() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for f := range k.followers {
		f.inputNews = true
		f.notify()
	}
}

// next returns the next frame for the reader; k 0 = none now. Output is copied
// into buf.
func (f *follower) next(buf []byte) (kind, any) {
	k := f.command
	k.mu.Lock()
	defer k.mu.Unlock()
	switch r := &k.ring; {
	case f.roleNews:
		f.roleNews = false
		return kindRole, role{Primary: f.primary}
	case f.inputNews && k.input != nil:
		f.inputNews = false
		return kindInput, k.input.state()
	case f.offset < r.start && !f.credit.full() && (f.credit.limit() > f.offset || k.end != nil):
		g := gap{Offset: f.offset, Bytes: r.start - f.offset}
		f.credit.gap(f.offset, r.start)
		f.offset = r.start
		return kindGap, g
	case f.offset >= r.start && f.offset < min(r.next, f.credit.limit()):
		n, stream := r.read(f.offset, buf[:min(int64(len(buf)), f.credit.limit()-f.offset)])
		o := output{Offset: f.offset, Stream: stream, Data: buf[:n]}
		f.offset += int64(n)
		return kindOutput, o
	case k.end != nil && f.offset == r.next && !f.ended:
		f.ended = true
		return kindEnd, ended{End: *k.end}
	}
	return 0, nil
}

// acknowledge takes a reader's word. It reports whether the end is acknowledged.
func (f *follower) acknowledge(a ack) bool {
	k := f.command
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.Offset < 0 || a.Offset > f.offset {
		return false // it cannot have consumed what it was not sent
	}
	f.credit.ack(a.Offset)
	f.notify()
	if !f.primary {
		return false
	}
	k.heard = time.Now()
	if k.ring.ack(a.Offset) {
		k.room.Broadcast()
	}
	return a.End && f.ended
}

// signal passes a signal or a size on, once and in order.
func (f *follower) inOrder(seq uint64) (Process, bool) {
	k := f.command
	k.mu.Lock()
	defer k.mu.Unlock()
	if f.primary {
		k.heard = time.Now()
	}
	if f.watch || seq <= k.lastSeq || k.end != nil {
		return nil, false
	}
	k.lastSeq = seq
	return k.process, true
}

// queue is where a reader's standard input goes; nil = nowhere.
func (f *follower) queue() *stdinQueue {
	k := f.command
	k.mu.Lock()
	defer k.mu.Unlock()
	if f.primary {
		k.heard = time.Now()
	}
	if f.watch || k.end != nil {
		return nil
	}
	return k.input
}
