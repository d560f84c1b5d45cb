// Package egress decides what code in a sandbox may reach, and carries the
// traffic that is allowed.
//
// A sandbox has no network. Its agent listens on a loopback port inside it and
// hands every connection over as a byte stream; [Proxy.ServeConn] speaks the
// protocol of an HTTP forward proxy on such a stream: CONNECT host:port for
// tunnels and absolute http:// URLs for plain requests. It judges each request
// on its own, resolves the name once, judges every address of the answer, and
// dials exactly those addresses.
//
// # Use
//
//	policy, err := egress.ParsePolicy([]string{"example.com", "*.example.net"}, egress.PolicyOptions{})
//	proxy, err := egress.NewProxy(egress.Config{Log: log, Decisions: publish})
//	session := egress.NewSession("sandbox-1", policy)
//	go proxy.ServeConn(ctx, stream, session) // one call per connection
//	session.SetPolicy(narrower)              // live
//	session.Close()                          // ends all its connections
//
// One Proxy serves a process. One [Session] stands for one sandbox, holds its
// live policy and counts. ServeConn returns when the connection has ended and
// everything that it started is gone.
//
// # What is promised
//
//   - Nothing is dialled unless the policy lists the normalised name and the
//     port. The target is judged as it was sent, by a grammar narrower than
//     net/url's; literal addresses in any spelling are never a name.
//   - Every address of the one resolution must be public (see [Classify]), not
//     the machine's own, and outside the denied prefixes; otherwise nothing is
//     dialled. Only these addresses are dialled, in turn. The default dialer
//     checks once more, at connect, with a table kept by others.
//   - A tunnel to port 443 must begin with a TLS ClientHello whose server name
//     is the CONNECT host, without encrypted client hello (its inner name is
//     what a shared front serves, whatever the outer one says); not a byte goes
//     upstream before. PolicyOptions.SNIExempt lifts this host by host.
//     Chromium sends the extension to everybody unless it is started with
//     --disable-features=EncryptedClientHello.
//   - A forwarded request names the judged host and nothing else, has one
//     framing, carries no hop-by-hop and no proxy header, and asks for no
//     upgrade. Nothing about the sandbox is added. Redirects are handed back.
//   - An upstream connection serves one request. So no answer can reach
//     another request, and each request is resolved and judged afresh.
//   - [Session.SetPolicy] holds for the next request at once, and ends what is
//     open to hosts that are no longer listed, well within two seconds.
//   - Header size and time, resolving, connecting, waiting for an answer, idle
//     time and the number of connections are bounded; see [Config].
//   - A [Decision] never carries a path, a query, a header or user information.
//
// # What is not promised
//
//   - What an allowed host does with the data is its own affair: it can be a
//     relay, a mailbox, or a DNS-over-HTTPS resolver. Do not list the last kind
//     if names as such must stay inside; the proxy itself looks up listed
//     names only.
//   - Inside TLS the Host header can name another site of the same front, if
//     that front does not tie it to the server name. The same holds for a second
//     ClientHello after a HelloRetryRequest.
//   - A tunnel to a port other than 443 carries any bytes to the judged address.
//     A deployment that does not want this leaves 80 out of
//     PolicyOptions.ConnectPorts; plain HTTP goes by absolute URL.
//   - Request and response trailers are dropped; early hints are not passed on.
//
// # Half-close
//
// When the sandbox ends its direction, the upstream hears of it and may go on
// answering; and the reverse. The client's connection passes an end on if it has
// a method CloseWrite() error, as *net.TCPConn and *tls.Conn do. A yamux stream
// has none (after its Close, Read returns io.EOF once the buffer is empty), so
// whoever carries connections over yamux must frame the end of a direction
// himself and offer CloseWrite. Without it, the end of the upstream's direction
// ends the connection, after all its bytes were delivered. A connection with
// one direction ended and no traffic in the other is closed after
// Config.HalfClosedTimeout.
//
// # Concurrency
//
// All methods of Proxy and Session may be called from any goroutine. A Policy is
// immutable. No constructor starts a goroutine.
//
// The package imports nothing of this module, so that it can become a process of
// its own.
package egress
