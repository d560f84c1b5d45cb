package messaging

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"shoal/sandbox"
	"shoal/sandbox/wellformed"
)

// MaxChunk is the most bytes of output in one frame.
const MaxChunk = 32 << 10

// FrameKind says what a frame of a stream is.
type FrameKind uint8

// The kinds. End, Failed and Moved are terminal: exactly one of them comes,
// and nothing after it.
const (
	FrameStarted FrameKind = 1 // the stream begins at Offset
	FrameData    FrameKind = 2
	FrameGap     FrameKind = 3 // Lost bytes from Offset on are not kept any more
	FrameBeat    FrameKind = 4 // alive; Offset is the next one to come
	FrameEnd     FrameKind = 5
	FrameFailed  FrameKind = 6
	FrameMoved   FrameKind = 7 // follow again through any worker; nothing has ended
)

var frameNames = [...]string{
	FrameStarted: "started", FrameData: "data", FrameGap: "gap", FrameBeat: "beat",
	FrameEnd: "end", FrameFailed: "error", FrameMoved: "moved",
}

// String returns the kind's name in the JSON form.
func (k FrameKind) String() string {
	if int(k) < len(frameNames) && k > 0 {
		return frameNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Frame is one message of a stream. On the wire it is the msgpack array
// [kind, command, epoch, offset, stream, data]; the last element is the bytes
// (data), the number of lost bytes (gap), an [Answer] (started, end, error) or
// nil.
type Frame struct {
	Kind    FrameKind
	Command string // the command's id; the request's for files and ports
	Epoch   uint64
	Offset  int64
	Stream  sandbox.Stream
	Data    []byte
	Lost    int64
	// Answer holds the encoded Answer of started, end and error frames.
	Answer []byte
	json   bool
}

// jsonFrame is the JSON form of a frame.
type jsonFrame struct {
	Kind    string             `json:"kind"`
	Command string             `json:"command"`
	Epoch   uint64             `json:"epoch,omitempty"`
	Offset  int64              `json:"offset"`
	Stream  string             `json:"stream,omitempty"`
	Data    []byte             `json:"data,omitempty"`
	Lost    int64              `json:"lost,omitempty"`
	Answer  stdjson.RawMessage `json:"answer,omitempty"`
}

var streamNames = map[sandbox.Stream]string{sandbox.Stdout: "stdout", sandbox.Stderr: "stderr"}

// appendFrame writes f in its wire form to buf.
func (f *Frame) encode(buf *bytes.Buffer) error {
	if f.json {
		return stdjson.NewEncoder(buf).Encode(jsonFrame{
			Kind: f.Kind.String(), Command: f.Command, Epoch: f.Epoch, Offset: f.Offset,
			Stream: streamNames[f.Stream], Data: f.Data, Lost: f.Lost, Answer: f.Answer,
		})
	}
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	resetEncoder(enc, buf)
	// Writing to a bytes.Buffer cannot fail, so one check at the end is enough.
	_ = enc.EncodeArrayLen(6)
	_ = enc.EncodeUint(uint64(f.Kind))
	_ = enc.EncodeString(f.Command)
	_ = enc.EncodeUint(f.Epoch)
	_ = enc.EncodeInt(f.Offset)
	_ = enc.EncodeUint(uint64(f.Stream))
	switch {
	case f.Kind == FrameData:
		return enc.EncodeBytes(f.Data)
	case f.Kind == FrameGap:
		return enc.EncodeInt(f.Lost)
	case f.Answer != nil:
		_, err := buf.Write(f.Answer)
		return err
	}
	return enc.EncodeNil()
}

// decodeFrame reads a frame; its Data and Answer are parts of data.
func decodeFrame(data []byte, asJSON bool) (Frame, error) {
	if asJSON {
		return decodeJSONFrame(data)
	}
	if err := wellformed.Check(data, maxDepth); err != nil {
		return Frame{}, badFrame(err)
	}
	r := bytes.NewReader(data)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	n, err := dec.DecodeArrayLen()
	if err != nil || n < 6 {
		return Frame{}, badFrame(err)
	}
	var f Frame
	if err := decodeHead(dec, &f); err != nil {
		return Frame{}, badFrame(err)
	}
	switch f.Kind {
	case FrameData:
		f.Data, err = restBytes(dec, r, data)
	case FrameGap:
		f.Lost, err = dec.DecodeInt64()
	case FrameStarted, FrameEnd, FrameFailed:
		f.Answer = data[len(data)-r.Len():]
	case FrameBeat, FrameMoved: // say it all by their kind
	}
	if err != nil || !f.valid() {
		return Frame{}, badFrame(err)
	}
	return f, nil
}

// restBytes reads the byte string that ends data.
func restBytes(dec *msgpack.Decoder, r *bytes.Reader, data []byte) ([]byte, error) {
	n, err := dec.DecodeBytesLen()
	if err != nil {
		return nil, err
	}
	if n < 0 || n > r.Len() {
		return nil, fmt.Errorf("%d bytes announced, %d there", n, r.Len())
	}
	start := len(data) - r.Len()
	return data[start : start+n : start+n], nil
}

func decodeHead(dec *msgpack.Decoder, f *Frame) (err error) {
	kind, err := dec.DecodeUint8()
	if err != nil {
		return err
	}
	f.Kind = FrameKind(kind)
	if f.Command, err = dec.DecodeString(); err != nil {
		return err
	}
	if f.Epoch, err = dec.DecodeUint64(); err != nil {
		return err
	}
	if f.Offset, err = dec.DecodeInt64(); err != nil {
		return err
	}
	stream, err := dec.DecodeUint8()
	f.Stream = sandbox.Stream(stream)
	return err
}

func decodeJSONFrame(data []byte) (Frame, error) {
	var j jsonFrame
	if err := stdjson.Unmarshal(data, &j); err != nil {
		return Frame{}, badFrame(err)
	}
	f := Frame{Command: j.Command, Epoch: j.Epoch, Offset: j.Offset, Data: j.Data, Lost: j.Lost, Answer: j.Answer, json: true}
	for kind, name := range frameNames {
		if name != "" && name == j.Kind {
			f.Kind = FrameKind(kind)
		}
	}
	for stream, name := range streamNames {
		if name == j.Stream {
			f.Stream = stream
		}
	}
	if !f.valid() {
		return Frame{}, badFrame(nil)
	}
	return f, nil
}

// valid refuses frames that no worker sends; numbers that would overflow an
// offset are among them.
func (f *Frame) valid() bool {
	const far = 1 << 60
	return f.Kind >= FrameStarted && f.Kind <= FrameMoved &&
		f.Offset >= 0 && f.Offset < far && f.Lost >= 0 && f.Lost < far && len(f.Data) <= MaxChunk
}

func badFrame(cause error) error {
	return sandbox.Errorf(sandbox.Internal, "a worker sent a message that is no frame").From(sandbox.FromClient).Wrap(cause)
}
