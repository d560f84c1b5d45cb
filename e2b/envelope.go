package e2b

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Connect streaming: each message is flags(1) | length(4, big endian) |
// payload; every stream ends with an envelope that has the end flag. Source:
// the Connect protocol, as recorded from envd 0.6.13.
const (
	flagCompressed = 0x01
	flagEnd        = 0x02

	// maxEnvelope bounds one message. envd cuts output at 32 KiB before
	// base64, so that this leaves room for anything it says.
	maxEnvelope = 1 << 20
)

// errTruncated is a stream that stopped without its end envelope: a broken
// connection, never an end.
var errTruncated = errors.New("the stream broke off without an end")

// appendEnvelope appends payload as one uncompressed message.
func appendEnvelope(dst, payload []byte) []byte {
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(payload)))
	return append(dst, payload...)
}

// readEnvelope reads one message into buf, which it grows as needed and returns.
func readEnvelope(r io.Reader, buf []byte) (flags byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, buf, truncated(err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxEnvelope {
		return 0, buf, fmt.Errorf("a message of %d bytes; at most %d are taken", n, maxEnvelope)
	}
	if head[0]&flagCompressed != 0 {
		return 0, buf, errors.New("a compressed message, which was not asked for")
	}
	if head[0]&^flagEnd != 0 {
		return 0, buf, fmt.Errorf("a message with the unknown flags %#x", head[0])
	}
	if uint32(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return 0, buf, truncated(err)
	}
	return head[0], buf, nil
}

func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errTruncated
	}
	return err
}

// endError reads the payload of an end envelope.
func endError(payload []byte, token Secret) error {
	var end struct {
		Error *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(payload, &end); err != nil {
		return fmt.Errorf("the stream's end is not JSON: %w", err)
	}
	if end.Error == nil {
		return nil
	}
	return &envdError{Status: 200, Code: clean(end.Error.Code), Message: clean(token.scrub(end.Error.Message))}
}
