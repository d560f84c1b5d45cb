package messaging

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// ackToken marks the inbox of acknowledgements that are sent as requests.
const ackToken = "_ack"

// take handles one message of the stream.
func (s *stream) take(m *nats.Msg) {
	switch m.Subject[strings.LastIndexByte(m.Subject, '.')+1:] {
	case s.token + ackToken:
		s.takeAckAnswer(m)
		return
	case s.token:
	default:
		return // of an earlier opening
	}
	switch {
	case m.Header.Get("Status") == "503":
		s.noWorker()
	case m.Header.Get(HeaderWord) == wordAccepted:
		s.lastMsg, s.heard = time.Now(), true
		s.setWorker(WorkerID(m.Header.Get(HeaderWorker)))
	default:
		f, err := decodeFrame(m.Data, m.Header.Get(HeaderContent) == contentType(true))
		if err != nil {
			s.c.log.Warn("unreadable frame", "sandbox", s.name, "error", err)
			return
		}
		s.takeFrame(f)
	}
}

func (s *stream) setWorker(w WorkerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worker = w
}

func (s *stream) takeFrame(f Frame) {
	if f.Epoch != 0 && f.Epoch < s.epoch {
		return // a former owner
	}
	s.epoch = max(s.epoch, f.Epoch)
	s.lastMsg, s.heard = time.Now(), true
	switch f.Kind {
	case FrameStarted:
		s.takeStarted(f)
	case FrameData, FrameGap:
		s.takeSegment(Segment{Offset: f.Offset, Stream: f.Stream, Data: f.Data, Lost: f.Lost})
	case FrameBeat:
		s.checkNext(f.Offset)
	case FrameEnd:
		if !s.opened {
			s.unstarted()
		} else if s.checkNext(f.Offset) {
			s.sayEnded()
			s.finish(f.Answer, errEnded)
		}
	case FrameFailed:
		s.takeFailed(f)
	case FrameMoved:
		s.lose("")
	}
}

// takeStarted: the present opening has succeeded.
func (s *stream) takeStarted(f Frame) {
	var a answer[Started]
	if err := decodeAnswer(f.Answer, f.json, &a); err != nil {
		s.c.log.Warn("unreadable start", "sandbox", s.name, "error", err)
		return
	}
	s.c.learn(s.name, a.Meta)
	s.opened, s.lostAt, s.silent = true, time.Time{}, ""
	s.mu.Lock()
	first := !s.started
	s.started, s.worker, s.info, s.body = true, a.Worker, a.Meta, f.Answer
	if first {
		s.recv, s.acked, s.used = f.Offset, f.Offset, f.Offset
	}
	s.mu.Unlock()
	if first {
		close(s.up)
	}
}

// takeSegment keeps what comes next, skips what came already, and asks again
// for what is missing.
func (s *stream) takeSegment(g Segment) {
	if !counts {
		g.Offset = s.recv
	}
	switch {
	case !s.opened:
		s.unstarted()
		return
	case g.end() <= s.recv:
		return
	case g.Offset > s.recv:
		s.lose("")
		return
	}
	skip := s.recv - g.Offset
	if g.Lost > 0 {
		g.Lost -= skip
	} else {
		g.Data = g.Data[skip:]
	}
	g.Offset = s.recv
	s.recv = g.end()
	s.mu.Lock()
	s.segs = append(s.segs, g)
	s.mu.Unlock()
	notify2(s.news)
}

// unstarted: output came whose first frame was lost. The stream is opened anew
// under another id, since a copy would be taken for one that is served already.
func (s *stream) unstarted() {
	s.renew = true
	s.lose("")
}

// checkNext compares what the worker has sent with what has arrived: they
// differ only when something was lost on the way.
func (s *stream) checkNext(next int64) bool {
	if s.opened && next > s.recv {
		s.lose("")
		return false
	}
	return true
}

// takeFailed: the opening, or the stream, ended with an error.
func (s *stream) takeFailed(f Frame) {
	var a answer[Done]
	if err := decodeAnswer(f.Answer, f.json, &a); err != nil || a.Error == nil {
		s.finish(nil, badFrame(err))
		return
	}
	e := a.Error
	switch {
	case e.Code == sandbox.Draining, e.Code == sandbox.Busy && e.RetryAfter > 0, e.Code == sandbox.Unavailable && s.begun():
		s.setWorker("")
		s.later(max(e.RetryAfter.Duration(), 50*time.Millisecond))
	case e.Code == sandbox.Restarted && !s.begun() && s.copies == 1 && e.Boot != "":
		s.c.setBoot(s.name, e.Boot) // the only copy has been answered: nothing can have started
		s.copies = 0
		s.later(0)
	case e.Code == sandbox.Restarted && s.area == AreaCommand, e.Code == sandbox.NotFound && s.begun():
		s.finish(nil, s.unknown("the sandbox was restarted", e))
	default:
		s.finish(nil, e)
	}
}

// begun reports whether the stream has started.
func (s *stream) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

// unknown says that the stream broke off: of a command its outcome is not
// known, anything else can simply be asked for again.
func (s *stream) unknown(why string, cause error) error {
	if s.area != AreaCommand {
		return sandbox.Errorf(sandbox.Unavailable, "the transfer broke off: %s; start it again", why).From(sandbox.FromClient).Wrap(cause)
	}
	return sandbox.Errorf(sandbox.OutcomeUnknown, "%s %s: %s; its end was not seen", s.area, s.id, why).From(sandbox.FromClient).Wrap(cause)
}

// takeAckAnswer: a worker, or nobody, answered "are you there?".
func (s *stream) takeAckAnswer(m *nats.Msg) {
	if m.Header.Get("Status") == "503" {
		s.lose(s.servedBy())
		return
	}
	var a answer[StreamAnswer]
	if err := decodeAnswer(m.Data, false, &a); err != nil {
		return
	}
	switch {
	case a.Error == nil:
		s.lastMsg = time.Now()
		s.checkNext(a.Result.Next)
	case a.Error.Code == sandbox.NotFound && s.opened:
		s.lose("") // the worker lives and has lost the stream
	}
}

func (s *stream) servedBy() WorkerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worker
}

// watch looks at the clock.
func (s *stream) watch(now time.Time) {
	silent := now.Sub(s.lastMsg)
	worker := s.servedBy()
	switch {
	case s.opening != nil:
		select {
		case <-s.opening.C:
			s.opening = nil
			s.reopen()
		default:
		}
	case s.begun() && !s.lostAt.IsZero() && now.Sub(s.lostAt) > reopenFor, !s.begun() && now.After(s.deadline):
		s.finish(nil, s.gaveUp())
	case silent > probeAfter && s.again():
		s.lose("")
	case silent > deadAfter:
		s.lose(worker)
	case silent > probeAfter && worker != "" && now.Sub(s.lastAck) > probeAfter:
		s.sendAck(true)
	case now.Sub(s.lastAck) > ackEvery && s.opened:
		s.sendAck(false)
	}
}

func (s *stream) gaveUp() error {
	if s.area == AreaCommand && (s.copies > 0 || s.begun()) {
		return s.unknown("no worker has answered for a while", nil)
	}
	return sandbox.Errorf(sandbox.Unavailable, "no worker answers; start one (shoal-worker) on this NATS server").From(sandbox.FromClient).Because("no_worker")
}

// noWorker: the opening reached nobody.
func (s *stream) noWorker() {
	if worker := s.servedBy(); worker != "" && !s.opened {
		s.c.forgetWorker(s.name, worker)
		s.setWorker("")
		s.copies = max(s.copies-1, 0) // it reached nobody
		s.reopen()
		return
	}
	s.copies = max(s.copies-1, 0)
	if !s.begun() && s.copies == 0 && time.Since(s.lostAt) > 2*time.Second {
		s.finish(nil, s.gaveUp())
		return
	}
	s.later(reopenEvery)
}

// lose gives the present worker up, when it is named as silent, and opens the
// stream again.
func (s *stream) lose(silent WorkerID) {
	if silent != "" {
		s.c.forgetWorker(s.name, silent)
		s.setWorker("")
		s.silent = silent
	}
	if wait := reopenEvery - time.Since(s.lastOpen); wait > 0 {
		s.later(wait)
		return
	}
	s.opened = false
	s.reopen()
}

// again reports whether a repeated opening has gone unheard: the queue group
// may have given it to the very worker that was found silent, and whoever lives
// says so at once.
func (s *stream) again() bool {
	return !s.opened && !s.heard && (s.begun() || s.copies > 1)
}

// later opens the stream again after d.
func (s *stream) later(d time.Duration) {
	s.opened = false
	if s.lostAt.IsZero() {
		s.lostAt = time.Now()
	}
	s.lastMsg = time.Now()
	if s.opening == nil {
		s.opening = time.NewTimer(d)
	}
}

// reopen sends the request that opens the stream, or carries it on.
func (s *stream) reopen() {
	s.lastOpen, s.heard = time.Now(), false
	if s.lostAt.IsZero() {
		s.lostAt = s.lastOpen
	}
	op, body := s.open(s, s.silent)
	if body == nil {
		s.finish(nil, s.unknown("the worker that served it is gone", nil))
		return
	}
	data, err := encode(body, false)
	if err != nil {
		s.finish(nil, err)
		return
	}
	s.newToken()
	subject := Subject(s.c.tenant, op)
	if worker := s.servedBy(); worker != "" {
		subject = WorkerSubject(s.c.tenant, worker, op)
	}
	deadline := s.deadline
	if s.begun() {
		deadline = time.Now().Add(reopenFor)
	}
	s.lastMsg, s.lastAck = time.Now(), time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), deadAfter)
	defer cancel()
	if err := s.c.publish(ctx, s.c.message(subject, s.token, data, deadline)); err != nil {
		s.notSent(err)
		return
	}
	s.copies++
}

// notSent: the connection is away. A stream that has begun waits for it.
func (s *stream) notSent(err error) {
	if !s.begun() && s.copies == 0 {
		s.finish(nil, err)
		return
	}
	s.later(reopenEvery)
}

// newToken makes the inbox of a new opening: what still comes from an earlier
// one is not heard any more. A copy of the first opening keeps its id.
func (s *stream) newToken() {
	if s.token != "" && !s.begun() && !s.renew {
		return
	}
	s.renew = false
	if s.token != "" {
		s.sayCancel() // in case its worker lives
	}
	s.forgetTokens()
	s.token = sandbox.NewID()
	s.tokens = []func(){
		s.c.wait(s.token, s.deliver),
		s.c.wait(s.token+ackToken, s.deliver),
	}
}

func (s *stream) forgetTokens() {
	for _, forget := range s.tokens {
		forget()
	}
	s.tokens = nil
}

// ackIfDue acknowledges in steps of a quarter of the window.
func (s *stream) ackIfDue() {
	s.mu.Lock()
	due := s.used-s.acked >= s.window/4
	s.mu.Unlock()
	if due && s.opened {
		s.sendAck(false)
	}
}

// sendAck says what has been consumed; asking makes it a request, which shows
// at once when the worker is gone.
func (s *stream) sendAck(ask bool) {
	s.mu.Lock()
	used, worker := s.used, s.worker
	s.mu.Unlock()
	if worker == "" {
		return
	}
	s.acked, s.lastAck = used, time.Now()
	s.say(VerbAck, worker, StreamRequest{Offset: used}, ask)
}

func (s *stream) sayCancel() {
	if worker := s.servedBy(); worker != "" {
		s.say(VerbCancel, worker, StreamRequest{Offset: s.recv}, false)
	}
}

// sayEnded tells the worker that the whole stream has arrived, so that its end
// need not be kept any longer.
func (s *stream) sayEnded() {
	if worker := s.servedBy(); worker != "" {
		s.say(VerbAck, worker, StreamRequest{Offset: s.recv, Ended: true}, false)
	}
}

// say sends a verb for the present opening; a lost one is repeated by the
// rules of silence.
func (s *stream) say(verb Verb, worker WorkerID, word StreamRequest, ask bool) {
	word.Stream = s.token
	body, err := encode(word, false)
	if err != nil {
		return
	}
	m := &nats.Msg{Subject: StreamSubject(s.c.tenant, worker, s.area, s.name, s.idNow(), verb), Data: body}
	if ask {
		m.Reply = s.c.inbox + "." + s.token + ackToken
	}
	if err := s.c.nc.PublishMsg(m); err != nil {
		s.c.log.Debug("verb not sent", "verb", verb, "error", err)
	}
}

// idNow is the id in the subject: the command's, or the request's.
func (s *stream) idNow() string {
	if s.area == AreaCommand {
		return s.id
	}
	return s.token
}
