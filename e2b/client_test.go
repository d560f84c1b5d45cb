package e2b

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// roundTrip answers requests without a network.
type roundTrip func(n int, r *http.Request) (*http.Response, error)

// scripted is a client whose n-th request (from 1) is answered by f.
func scripted(f roundTrip) (*client, *atomic.Int32) {
	var n atomic.Int32
	rt := roundTripper(func(r *http.Request) (*http.Response, error) { return f(int(n.Add(1)), r) })
	return &client{base: "https://api.test", key: NewSecret("e2b_secretsecret"), http: newHTTP(rt), log: slog.New(slog.DiscardHandler), backoff: baseBackoff}, &n
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func reply(status int, body string, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

const made = `{"sandboxID":"iabc","envdAccessToken":"tok","envdVersion":"0.6.13"}`

// calls are the three kinds of call that E2-06 speaks of.
var calls = map[string]func(context.Context, *client) error{
	"create": func(ctx context.Context, c *client) error { _, err := c.create(ctx, newSandbox{}); return err },
	"list":   func(ctx context.Context, c *client) error { _, err := c.list(ctx, nil); return err },
	"connect": func(ctx context.Context, c *client) error {
		_, _, err := c.connect(ctx, "iabc", 60, false)
		return err
	},
}

func okFor(r *http.Request) *http.Response {
	if r.Method == http.MethodGet {
		return reply(200, "[]")
	}
	return reply(201, made)
}

func testRateLimitsAreWaitedFor(t *testing.T) {
	for name, do := range calls {
		for kind, c := range map[string]struct {
			header      []string
			least, most time.Duration
		}{
			"with Retry-After":    {[]string{"Retry-After", "7"}, 14 * time.Second, 16 * time.Second},
			"without Retry-After": {nil, 1500 * time.Millisecond, 2 * time.Second},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client, n := scripted(func(n int, r *http.Request) (*http.Response, error) {
						if n <= 2 {
							return reply(429, `{"code":429,"message":"Rate limit exceeded"}`, c.header...), nil
						}
						return okFor(r), nil
					})
					began := time.Now()
					if err := do(t.Context(), client); err != nil {
						t.Fatal(err)
					}
					if took := time.Since(began); took < c.least || took > c.most || n.Load() != 3 {
						t.Errorf("%d requests in %s, want 3 in %s to %s", n.Load(), took, c.least, c.most)
					}
				})
			})
		}
	}
}

func TestRateLimitEndsSomeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, n := scripted(func(int, *http.Request) (*http.Response, error) {
			return reply(429, `{"code":429,"message":"you have reached the maximum number of concurrent E2B sandboxes (20)"}`), nil
		})
		_, err := client.create(t.Context(), newSandbox{})
		if e := asAPI(err); e == nil || e.Status != 429 || !e.retryable() || n.Load() != maxAttempts {
			t.Errorf("%v after %d requests", err, n.Load())
		}
	})
}

func TestLongRetryAfterIsHandedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, n := scripted(func(int, *http.Request) (*http.Response, error) {
			return reply(429, `{"code":429,"message":"Rate limit exceeded"}`, "Retry-After", "600"), nil
		})
		_, err := client.list(t.Context(), nil)
		if e := asAPI(err); e == nil || e.RetryAfter != 10*time.Minute || n.Load() != 1 {
			t.Errorf("%v after %d requests", err, n.Load())
		}
	})
}

func testCreateIsRepeatedOnlyWhenSurelyNotDone(t *testing.T) {
	dialed := func(r *http.Request) {
		httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	}
	for name, c := range map[string]struct {
		fail     roundTrip
		requests int32
	}{
		"never connected": {func(int, *http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }, maxAttempts},
		"broken after sending": {func(_ int, r *http.Request) (*http.Response, error) {
			dialed(r)
			return nil, io.ErrUnexpectedEOF
		}, 1},
		"500":            {func(int, *http.Request) (*http.Response, error) { return reply(500, `{"code":500,"message":"x"}`), nil }, 1},
		"503":            {func(int, *http.Request) (*http.Response, error) { return reply(503, `{"code":503,"message":"x"}`), nil }, 1},
		"502 of a proxy": {func(int, *http.Request) (*http.Response, error) { return reply(502, "bad gateway"), nil }, 1},
		"409":            {func(int, *http.Request) (*http.Response, error) { return reply(409, `{"code":409,"message":"x"}`), nil }, 1},
		"400":            {func(int, *http.Request) (*http.Response, error) { return reply(400, `{"code":400,"message":"x"}`), nil }, 1},
		"answer cut off": {func(int, *http.Request) (*http.Response, error) { return reply(201, `{"sandboxID":"ia`), nil }, 1},
		"answer too long": {func(int, *http.Request) (*http.Response, error) {
			return reply(201, made+strings.Repeat(" ", maxAnswer)), nil
		}, 1},
		"no valid id": {func(int, *http.Request) (*http.Response, error) { return reply(201, `{"sandboxID":"../x"}`), nil }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, n := scripted(c.fail)
				if _, err := client.create(t.Context(), newSandbox{}); err == nil {
					t.Error("no error")
				}
				if n.Load() != c.requests {
					t.Errorf("%d requests, want %d", n.Load(), c.requests)
				}
			})
		})
	}
}

func TestOtherCallsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, n := scripted(func(n int, r *http.Request) (*http.Response, error) {
			switch n {
			case 1:
				return reply(503, `{"code":503,"message":"x"}`), nil
			case 2:
				return nil, io.ErrUnexpectedEOF
			case 3:
				return reply(409, `{"code":409,"message":"in transition","error_code":"sandbox_start_in_flight"}`), nil
			}
			return okFor(r), nil
		})
		if _, resumed, err := client.connect(t.Context(), "iabc", 60, false); err != nil || !resumed {
			t.Errorf("%v after %d requests", err, n.Load())
		}
	})
}

func TestCallEndsAtItsLimitAndTheCallers(t *testing.T) {
	hang := func(_ int, r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	t.Run("its own", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client, _ := scripted(func(n int, r *http.Request) (*http.Response, error) {
				httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
				return hang(n, r)
			})
			began := time.Now()
			_, err := client.create(t.Context(), newSandbox{})
			if time.Since(began) != slowCall || !errors.Is(err, errNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		})
	})
	t.Run("the caller's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client, n := scripted(hang)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := client.get(ctx, "iabc")
			if !errors.Is(err, context.DeadlineExceeded) || n.Load() != 1 {
				t.Errorf("%v after %d requests", err, n.Load())
			}
		})
	})
}

func TestRedirectsAreRefused(t *testing.T) {
	var leaked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked.Add(1) }))
	defer other.Close()
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer first.Close()
	c := &client{base: first.URL, key: NewSecret("e2b_k"), http: newHTTP(newTransport()), log: slog.New(slog.DiscardHandler), backoff: baseBackoff}
	_, err := c.get(t.Context(), "iabc")
	if e := asAPI(err); e == nil || e.Status != http.StatusTemporaryRedirect || leaked.Load() != 0 {
		t.Errorf("%v, %d requests went elsewhere", err, leaked.Load())
	}
}

func TestUnsentRequestsAreKnown(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	c := &client{base: server.URL, key: NewSecret("e2b_k"), http: newHTTP(newTransport()), log: slog.New(slog.DiscardHandler), backoff: baseBackoff}
	r := call{name: "create sandbox", method: http.MethodPost, path: "/sandboxes", body: struct{}{}, timeout: quickCall, once: true}
	if _, _, err := c.send(t.Context(), r); asAPI(err) == nil || asAPI(err).NotSent {
		t.Errorf("a dropped connection: %v", err)
	}
	server.Close()
	if _, _, err := c.send(t.Context(), r); asAPI(err) == nil || !asAPI(err).NotSent {
		t.Errorf("a closed port: %v", err)
	}
}

func TestOnlyTheTextProvesGone(t *testing.T) {
	for name, c := range map[string]struct {
		status        int
		body          string
		gone, noRoute bool
	}{
		"gone":       {404, `{"code":404,"message":"Sandbox \"iabc\" doesn't exist or you don't have access to it"}`, true, false},
		"no route":   {404, `{"code":404,"message":"validation error: no matching operation was found"}`, false, true},
		"no method":  {404, `{"code":404,"message":"validation error: method not allowed"}`, false, true},
		"bare code":  {404, `{"code":404,"message":"not found"}`, false, false},
		"a proxy's":  {404, `<html>doesn't exist or you don't have access</html>`, false, false},
		"other code": {404, `{"code":500,"message":"doesn't exist or you don't have access"}`, false, false},
		"400":        {400, `{"code":400,"message":"doesn't exist or you don't have access"}`, false, false},
		"empty":      {404, ``, false, false},
	} {
		e := answerError("x", c.status, http.Header{}, []byte(c.body), Secret{})
		if e.gone() != c.gone || e.noRoute() != c.noRoute {
			t.Errorf("%s: gone %t, no route %t", name, e.gone(), e.noRoute())
		}
	}
}

func TestListing(t *testing.T) {
	t.Run("all pages, and only what fits", func(t *testing.T) {
		client, _ := scripted(func(_ int, r *http.Request) (*http.Response, error) {
			if got := r.URL.Query().Get("state"); got != "running,paused" {
				t.Errorf("state is %q", got)
			}
			switch r.URL.Query().Get("nextToken") {
			case "":
				return reply(200, `[{"sandboxID":"ia","metadata":{"k":"v"}},{"sandboxID":"ib","metadata":{"k":"w"}}]`, "X-Next-Token", "t2"), nil
			case "t2":
				return reply(200, `[{"sandboxID":"ic","metadata":{"k":"v"}},{"sandboxID":"../d","metadata":{"k":"v"}}]`), nil
			}
			return reply(400, `{"code":400,"message":"Invalid next token"}`), nil
		})
		found, err := client.list(t.Context(), map[string]string{"k": "v"})
		if err != nil || len(found) != 2 || found[0].SandboxID != "ia" || found[1].SandboxID != "ic" {
			t.Errorf("%+v, %v", found, err)
		}
	})
	t.Run("a server that turns in circles", func(t *testing.T) {
		client, n := scripted(func(int, *http.Request) (*http.Response, error) {
			return reply(200, `[]`, "X-Next-Token", "same"), nil
		})
		if _, err := client.list(t.Context(), nil); err == nil || n.Load() > 3 {
			t.Errorf("%v after %d requests", err, n.Load())
		}
	})
}

func TestMetadataEncoding(t *testing.T) {
	// As the JavaScript SDK 2.51.0 was seen to write it, but for the space, for
	// which it has %20 where Go has +; the server reads both.
	q := map[string][]string{"metadata": {encodeMetadata(map[string]string{"a b": "c&d=é"})}}
	want := "metadata=a%252Bb%3Dc%252526d%25253D%2525C3%2525A9"
	if got := url.Values(q).Encode(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSecondVersionIsTriedWhereTheFirstIsUnknown(t *testing.T) {
	client, _ := scripted(func(_ int, r *http.Request) (*http.Response, error) {
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			return reply(201, made), nil
		}
		return reply(404, `{"code":404,"message":"validation error: no matching operation was found"}`), nil
	})
	if a, err := client.create(t.Context(), newSandbox{}); err != nil || a.SandboxID != "iabc" {
		t.Errorf("create: %v", err)
	}
	if _, _, err := client.connect(t.Context(), "iabc", 60, false); err != nil {
		t.Errorf("connect: %v", err)
	}
}

func TestAnswerForAnotherSandboxIsRefused(t *testing.T) {
	client, _ := scripted(func(int, *http.Request) (*http.Response, error) { return reply(200, made), nil })
	if _, err := client.get(t.Context(), "iother"); err == nil {
		t.Error("get took it")
	}
	if _, _, err := client.connect(t.Context(), "iother", 60, false); err == nil {
		t.Error("connect took it")
	}
}
