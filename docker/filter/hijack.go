package filter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"time"
)

// stream starts an exec. Only when the engine itself has answered 101 do both
// connections become raw, and they end with the stream; with any other answer
// the connection goes on as HTTP, so that a request behind it is judged.
func (f *Filter) stream(w http.ResponseWriter, r *http.Request, c *Call) {
	engine, err := f.upgrade(r.Context(), c)
	if err != nil {
		f.log.LogAttrs(r.Context(), slogError, "docker engine did not answer", ruleAttr(c), errAttr(err))
		writeError(w, http.StatusBadGateway, "docker filter: the engine did not answer")
		return
	}
	defer func() { _ = engine.conn.Close() }()
	if engine.answer.StatusCode != http.StatusSwitchingProtocols {
		copyAnswer(w, engine.answer)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeError(w, http.StatusInternalServerError, "docker filter: the connection cannot become a stream")
		return
	}
	client := unwrap(conn)
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(r.Context(), func() {
		_ = conn.Close()
		_ = engine.conn.Close()
	})
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(writeWait))
	if _, err := io.WriteString(client, switching(engine.answer)); err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	splice(client, buffered.Reader, engine)
}

// An engineStream is a connection to the engine after its answer.
type engineStream struct {
	conn   net.Conn
	reader *bufio.Reader // what came behind the answer
	answer *http.Response
}

// upgrade sends the call on a connection of its own and reads the answer.
func (f *Filter) upgrade(ctx context.Context, c *Call) (*engineStream, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	conn, err := f.dial(dialCtx)
	if err != nil {
		return nil, fmt.Errorf("dial the engine: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(upgradeWait))
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", c.Method, c.Target, len(c.Body))
	if _, err := conn.Write(append([]byte(head), c.Body...)); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("send to the engine: %w", err)
	}
	bounded := &io.LimitedReader{R: conn, N: maxHeader}
	reader := bufio.NewReader(bounded)
	answer, err := http.ReadResponse(reader, nil) //nolint:bodyclose // the connection is closed as a whole
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("read the engine's answer: %w", err)
	}
	bounded.N = math.MaxInt64
	if answer.StatusCode == http.StatusSwitchingProtocols {
		if answer.Header.Get("Upgrade") != "tcp" {
			_ = conn.Close()
			return nil, errors.New("the engine switched to another protocol than asked")
		}
		_ = conn.SetDeadline(time.Time{})
	}
	return &engineStream{conn, reader, answer}, nil
}

func switching(answer *http.Response) string {
	head := "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
	switch t := answer.Header.Get("Content-Type"); t {
	case "application/vnd.docker.raw-stream", "application/vnd.docker.multiplexed-stream":
		head += "Content-Type: " + t + "\r\n"
	}
	return head + "\r\n"
}

// splice copies both ways. The end of the caller's bytes is passed on as a half
// close and its output still arrives; the end of the engine's bytes ends all.
func splice(client net.Conn, buffered *bufio.Reader, engine *engineStream) {
	input := make(chan struct{})
	go func() {
		defer close(input)
		if copyStream(engine.conn, client, buffered) != nil {
			_ = engine.conn.Close()
			return
		}
		if half, ok := engine.conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_ = copyStream(client, engine.conn, engine.reader)
	_ = client.Close()
	_ = engine.conn.Close()
	<-input
}

// copyStream copies what is buffered, then the rest of src, until its end.
func copyStream(dst io.Writer, src io.Reader, buffered *bufio.Reader) error {
	if n := buffered.Buffered(); n > 0 {
		if _, err := io.CopyN(dst, buffered, int64(n)); err != nil {
			return err
		}
	}
	return pump(dst, src)
}
