package envd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxBody bounds a request, in bytes. The real daemon sets no limit.
const maxBody = 64 << 20

const (
	postUnary  = "application/grpc, application/grpc+json, application/grpc+json; charset=utf-8, application/grpc+proto, application/grpc-web, application/grpc-web+json, application/grpc-web+json; charset=utf-8, application/grpc-web+proto, application/json, application/json; charset=utf-8, application/proto"
	postStream = "application/connect+json, application/connect+json; charset=utf-8, application/connect+proto, application/grpc, application/grpc+json, application/grpc+json; charset=utf-8, application/grpc+proto, application/grpc-web, application/grpc-web+json, application/grpc-web+json; charset=utf-8, application/grpc-web+proto"
)

// rpcError is an error of the Connect protocol.
type rpcError struct {
	code    string
	message string
}

func (e *rpcError) Error() string { return e.code + ": " + e.message }

func rpcErrorf(code, format string, args ...any) *rpcError {
	return &rpcError{code: code, message: fmt.Sprintf(format, args...)}
}

var statusOf = map[string]int{
	"invalid_argument": 400, "unauthenticated": 401, "not_found": 404, "already_exists": 409, "unimplemented": 501,
	"internal": 500, "unknown": 500, "deadline_exceeded": 504,
}

// asJSON gives what goes on the wire for e.
func (e *rpcError) asJSON() []byte {
	return encode(struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{e.code, e.message})
}

func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

type unaryMethod func(r *http.Request, body []byte) (any, *rpcError)

// unary wraps a method with one request and one answer.
func (s *Server) unary(name string, method unaryMethod) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !accepts(w, r, "application/json", postUnary) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		var answer any
		_, rpcErr := s.userOf(r)
		if rpcErr == nil { // else an interceptor: it answers before the codec does
			w.Header().Set("Accept-Encoding", "gzip")
			answer, rpcErr = s.callUnary(name, method, r)
		}
		status, data := http.StatusOK, encode(answer)
		if rpcErr != nil {
			status, data = statusOf[rpcErr.code], rpcErr.asJSON()
		}
		if rpcErr == nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			w.Header().Set("Content-Encoding", "gzip")
			data = zip(data)
		}
		w.WriteHeader(status)
		_, _ = w.Write(data)
	}
}

func (s *Server) callUnary(name string, method unaryMethod, r *http.Request) (any, *rpcError) {
	if err := protocolVersion(r); err != nil {
		return nil, err
	}
	body, readErr := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if readErr != nil {
		return nil, rpcErrorf("unknown", "read message: %v", readErr)
	}
	if len(body) == 0 {
		return nil, rpcErrorf("invalid_argument", "unmarshal message: zero-length payload is not a valid JSON object")
	}
	if !json.Valid(body) {
		return nil, rpcErrorf("invalid_argument", "unmarshal message: unmarshal into *process.%sRequest: proto: unexpected EOF", name)
	}
	return method(r, body)
}

// accepts refuses what the real router refuses before any method runs.
func accepts(w http.ResponseWriter, r *http.Request, contentType, post string) bool {
	got, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
	case got != contentType:
		w.Header().Set("Accept-Post", post)
		w.WriteHeader(http.StatusUnsupportedMediaType)
	default:
		return true
	}
	return false
}

func protocolVersion(r *http.Request) *rpcError {
	if v := r.Header.Get("Connect-Protocol-Version"); v != "" && v != "1" {
		return rpcErrorf("invalid_argument", `Connect-Protocol-Version must be "1": got %q`, v)
	}
	return nil
}

func zip(data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(data)
	_ = z.Close()
	return b.Bytes()
}

// unmarshal decodes a request; unknown fields are ignored, as protobuf does.
func unmarshal(name string, body []byte, into any) *rpcError {
	err := json.Unmarshal(body, into)
	if err == nil {
		return nil
	}
	if badPID, ok := errors.AsType[*pidError](err); ok {
		at := bytes.Index(body, []byte(badPID.text)) + 1
		return rpcErrorf("invalid_argument", "unmarshal message: unmarshal into *process.%s: proto: (line 1:%d): invalid value for uint32 field pid: %s", name, at, badPID.text)
	}
	return rpcErrorf("invalid_argument", "unmarshal message: unmarshal into *process.%s: proto: %v", name, err)
}

// pid is a uint32 that reports what it was given instead.
type pid uint32

type pidError struct{ text string }

func (e *pidError) Error() string { return "invalid value for uint32 field pid: " + e.text }

// UnmarshalJSON implements [json.Unmarshaler].
func (p *pid) UnmarshalJSON(data []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(data), `"`), 10, 32)
	if err != nil {
		return &pidError{text: string(data)}
	}
	*p = pid(n)
	return nil
}

// sender writes the envelopes of one answer.
type sender struct {
	w      http.ResponseWriter
	zipped bool
}

func (o *sender) send(flags byte, payload []byte) error {
	if o.zipped {
		flags, payload = flags|1, zip(payload)
	}
	frame := append([]byte{flags}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
	if _, err := o.w.Write(append(frame, payload...)); err != nil {
		return err
	}
	return http.NewResponseController(o.w).Flush()
}

func (o *sender) message(v any) error { return o.send(0, encode(v)) }

// finish writes the end of the stream.
func (o *sender) finish(err *rpcError) {
	payload := []byte("{}")
	if err != nil {
		payload = append(append([]byte(`{"error":`), err.asJSON()...), '}')
	}
	_ = o.send(2, payload)
}

type streamMethod func(ctx context.Context, r *http.Request, messages [][]byte, out *sender) *rpcError

// stream wraps a method whose answer is a stream.
func (s *Server) stream(method streamMethod) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !accepts(w, r, "application/connect+json", postStream) {
			return
		}
		body, readErr := io.ReadAll(io.LimitReader(r.Body, maxBody))
		h := w.Header()
		h.Set("Content-Type", "application/connect+json")
		out := &sender{w: w, zipped: r.Header.Get("Connect-Accept-Encoding") == "gzip" || r.Header.Get("Connect-Content-Encoding") == "gzip"}
		if _, err := s.userOf(r); err != nil { // an interceptor: it answers before the codec does
			frame := append(append([]byte(`{"error":`), err.asJSON()...), '}')
			_, _ = w.Write(append(append([]byte{2}, binary.BigEndian.AppendUint32(nil, uint32(len(frame)))...), frame...))
			return
		}
		h.Set("Connect-Accept-Encoding", "gzip")
		if out.zipped {
			h.Set("Connect-Content-Encoding", "gzip")
		}
		w.WriteHeader(http.StatusOK)
		if readErr != nil {
			out.finish(rpcErrorf("unknown", "read message: %v", readErr))
			return
		}
		out.finish(runStream(method, r, body, out))
	}
}

func runStream(method streamMethod, r *http.Request, body []byte, out *sender) *rpcError {
	if err := protocolVersion(r); err != nil {
		return err
	}
	ctx := r.Context()
	if text := r.Header.Get("Connect-Timeout-Ms"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return rpcErrorf("invalid_argument", "parse timeout: %v", err)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer cancel()
	}
	messages, rpcErr := split(body, r.Header.Get("Connect-Content-Encoding") == "gzip")
	if rpcErr != nil {
		return rpcErr
	}
	return method(ctx, r, messages, out)
}

// split takes the request's envelopes apart.
func split(body []byte, zipped bool) ([][]byte, *rpcError) {
	var all [][]byte
	for len(body) > 0 {
		if len(body) < 5 || len(body)-5 < int(binary.BigEndian.Uint32(body[1:])) {
			return nil, rpcErrorf("invalid_argument", "protocol error: incomplete envelope: unexpected EOF")
		}
		flags, payload := body[0], body[5:5+binary.BigEndian.Uint32(body[1:])]
		body = body[5+len(payload):]
		if flags&1 != 0 {
			if !zipped {
				return nil, rpcErrorf("internal", "protocol error: sent compressed message without compression support")
			}
			z, err := gzip.NewReader(bytes.NewReader(payload))
			if err != nil {
				return nil, rpcErrorf("invalid_argument", "decompress: %v", err)
			}
			if payload, err = io.ReadAll(io.LimitReader(z, maxBody)); err != nil {
				return nil, rpcErrorf("invalid_argument", "decompress: %v", err)
			}
		}
		all = append(all, payload)
	}
	return all, nil
}

// single is the request of a method that takes exactly one message.
func single(messages [][]byte) ([]byte, *rpcError) {
	switch len(messages) {
	case 0:
		return nil, rpcErrorf("unimplemented", "unary request has zero messages")
	case 1:
		return messages[0], nil
	default:
		return nil, rpcErrorf("unimplemented", "unary request has multiple messages")
	}
}

// basicUser returns the user name that the request asks for, if any.
func basicUser(r *http.Request) (string, bool) {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Basic ")
	if !ok {
		return "", false
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", false
	}
	name, _, _ := strings.Cut(string(data), ":")
	return name, true
}
