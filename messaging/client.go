package messaging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	neturl "net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// Options of a [Client].
type Options struct {
	// Tenant defaults to "main".
	Tenant sandbox.Tenant
	// Log defaults to none.
	Log *slog.Logger
}

// DefaultTenant is the tenant of a client that names none.
const DefaultTenant sandbox.Tenant = "main"

// Client is what a kernel uses. Its methods may be called from any goroutine.
// A ctx without a deadline gets one of 60 s where a call has to end by itself.
//
// A lost answer is asked for again with the same request id. Where that could
// do a thing twice the error is OutcomeUnknown.
type Client struct {
	nc     *nats.Conn
	tenant sandbox.Tenant
	log    *slog.Logger
	inbox  string
	sub    *nats.Subscription
	owned  bool // the connection is closed with the client

	mu      sync.Mutex // guards the rest
	waiting map[string]func(*nats.Msg)
	places  map[sandbox.Name]place
}

// place is what the last answer said about a sandbox; only a hint.
type place struct {
	worker     WorkerID
	generation string
	boot       string
}

// maxPlaces bounds the hints; all are forgotten when there are more.
const maxPlaces = 4096

// Connect connects to NATS as a kernel of the tenant and returns a client that
// closes the connection with itself. extra options come last.
func Connect(url string, o Options, extra ...nats.Option) (*Client, error) {
	o = o.withDefaults()
	nc, err := nats.Connect(url, append(ConnOptions(o.Tenant), extra...)...)
	if err != nil {
		return nil, ConnectError(url, err)
	}
	c, err := NewClient(nc, o)
	if err != nil {
		nc.Close()
		return nil, err
	}
	c.owned = true
	return c, nil
}

// ConnOptions are the options that a connection of a kernel needs: its own
// inbox prefix, nothing queued while NATS is away, reconnecting for ever, a
// dead connection noticed within seconds.
func ConnOptions(tenant sandbox.Tenant) []nats.Option {
	return []nats.Option{
		nats.Name("shoal client"),
		nats.CustomInboxPrefix(InboxPrefix(tenant)),
		nats.PermissionErrOnSubscribe(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default one prints
		lasting,
	}
}

// WorkerConnOptions are the options that the connection of a worker's [Server]
// needs; the worker adds its own error handler.
func WorkerConnOptions(worker WorkerID) []nats.Option {
	return []nats.Option{
		nats.Name("shoal worker " + string(worker)),
		nats.CustomInboxPrefix("_INBOX._worker"), // no tenant can have this name
		lasting,
	}
}

// lasting makes a connection that queues nothing while NATS is away, connects
// again for ever, and notices a dead peer within seconds.
func lasting(o *nats.Options) error {
	o.ReconnectBufSize = -1
	o.MaxReconnect = -1
	o.ReconnectWait = 100 * time.Millisecond
	o.PingInterval = 5 * time.Second
	o.MaxPingsOut = 2
	o.FlusherTimeout = 10 * time.Second
	return nil
}

// ConnectError puts into plain words why no connection to the servers at url
// came about, without what url may hold of a password.
func ConnectError(url string, err error) error {
	if _, ok := errors.AsType[*neturl.Error](err); ok { // its text holds the whole address
		return sandbox.Errorf(sandbox.Invalid, "%s is not the address of a NATS server; use nats://host:port", hideUser(url)).From(sandbox.FromClient)
	}
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return sandbox.Errorf(sandbox.Denied, "NATS refuses these credentials; check user, password, nkey or creds file").From(sandbox.FromClient).Wrap(err)
	case errors.Is(err, nats.ErrNoServers):
		return sandbox.Errorf(sandbox.Unavailable, "no NATS server answers at %s; start one, or name another", hideUser(url)).From(sandbox.FromClient).Wrap(err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "connect to NATS at %s: %s", hideUser(url), err).From(sandbox.FromClient).Wrap(err)
}

// hideUser drops what stands before an @ of a URL: it may be a password.
func hideUser(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		scheme, rest = "nats", url
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:]
	}
	return scheme + "://" + rest
}

func (o Options) withDefaults() Options {
	if o.Tenant == "" {
		o.Tenant = DefaultTenant
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// NewClient makes a client over nc, which stays the caller's; make it with
// [ConnOptions]. It subscribes to the client's inbox.
func NewClient(nc *nats.Conn, o Options) (*Client, error) {
	o = o.withDefaults()
	if nc == nil {
		return nil, errors.New("messaging: a connection is required")
	}
	if err := o.Tenant.Validate(); err != nil {
		return nil, err
	}
	c := &Client{
		nc: nc, tenant: o.Tenant, log: o.Log, inbox: nc.NewInbox(),
		waiting: map[string]func(*nats.Msg){}, places: map[sandbox.Name]place{},
	}
	sub, err := nc.Subscribe(c.inbox+".*", c.deliver)
	if err != nil {
		return nil, fmt.Errorf("subscribe to the inbox: %w", err)
	}
	c.sub = sub
	if err := nc.FlushTimeout(10 * time.Second); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to the inbox: %w", err), sub.Unsubscribe())
	}
	if err := nc.LastError(); err != nil && errors.Is(err, nats.ErrPermissionViolation) {
		return nil, sandbox.Errorf(sandbox.Denied, "these credentials may not read %s.>; use those of tenant %s", InboxPrefix(o.Tenant), o.Tenant).From(sandbox.FromClient).Wrap(err)
	}
	return c, nil
}

// Tenant returns the client's tenant.
func (c *Client) Tenant() sandbox.Tenant { return c.tenant }

// Close ends the client's subscription, and its connection when [Connect] made
// it. Streams that are still open end with an error.
func (c *Client) Close() error {
	err := c.sub.Unsubscribe()
	if errors.Is(err, nats.ErrConnectionClosed) {
		err = nil
	}
	if c.owned {
		c.nc.Close()
	}
	return err
}

// deliver hands a message to the call or stream that waits for it; it must
// not block, since every stream of the client comes through here.
func (c *Client) deliver(m *nats.Msg) {
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	c.mu.Lock()
	to := c.waiting[token]
	c.mu.Unlock()
	if to != nil {
		to(m)
	}
}

func (c *Client) wait(token string, to func(*nats.Msg)) (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[token] = to
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, token)
	}
}

func (c *Client) place(name sandbox.Name) place {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.places[name]
}

// learn keeps what an answer says about a sandbox.
func (c *Client) learn(name sandbox.Name, m Meta) {
	if name == "" || m.Worker == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.places[name]
	p.worker = m.Worker
	if m.Generation != "" && m.Generation != p.generation {
		p.generation, p.boot = m.Generation, ""
	}
	if m.Boot != "" {
		p.boot = m.Boot
	}
	if len(c.places) >= maxPlaces {
		clear(c.places)
	}
	c.places[name] = p
}

// forgetWorker drops the hint that worker serves the sandbox.
func (c *Client) forgetWorker(name sandbox.Name, worker WorkerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.places[name]; ok && p.worker == worker {
		p.worker = ""
		c.places[name] = p
	}
}

func (c *Client) setBoot(name sandbox.Name, boot string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.places[name]
	p.boot = boot
	c.places[name] = p
}

// message is a request as it goes out.
func (c *Client) message(subject, id string, body []byte, deadline time.Time) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Reply = c.inbox + "." + id
	m.Data = body
	m.Header.Set(HeaderRequest, id)
	m.Header.Set(HeaderProtocol, Protocol)
	m.Header.Set(HeaderAccept, "1")
	m.Header.Set(HeaderTimeout, strconv.FormatInt(int64(sandbox.Millis(max(time.Until(deadline), time.Millisecond))), 10))
	m.Header.Set(HeaderDeadline, strconv.FormatInt(deadline.UnixMilli(), 10))
	return m
}

// publish sends m, waiting a moment for a connection that is away.
func (c *Client) publish(ctx context.Context, m *nats.Msg) error {
	const wait = 2 * time.Second
	give := time.Now().Add(wait)
	for {
		err := c.nc.PublishMsg(m)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, nats.ErrMaxPayload):
			return sandbox.Errorf(sandbox.TooLarge, "the request has %d bytes, more than the NATS server takes", len(m.Data)).From(sandbox.FromClient).Wrap(err)
		case errors.Is(err, nats.ErrConnectionClosed) || time.Now().After(give):
			return sandbox.Errorf(sandbox.Unavailable, "the connection to NATS is down; nothing was sent").From(sandbox.FromClient).Wrap(err)
		}
		select {
		case <-ctx.Done():
			return clientError(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// clientError says how a wait of the client ended.
func clientError(ctx context.Context) *sandbox.Error {
	err := context.Cause(ctx)
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e.Wrap(err) // the cause may say more, such as that a lock is lost
	}
	return sandbox.AsError(ctx.Err()).From(sandbox.FromClient).Wrap(err)
}

// window is what one stream may have under way, less when there are many: all
// streams of a client share the bounds of its connection.
func (c *Client) window() int64 {
	const many = 32
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) > 2*many { // a stream has two inboxes
		return DefaultWindow / 4
	}
	return DefaultWindow
}
