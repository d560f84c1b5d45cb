package messaging

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"

	"shoal/sandbox"
	"shoal/sandbox/wellformed"
)

// maxDepth bounds the nesting of a body.
const maxDepth = 16

// maxBody is the most bytes of a body, the default max_payload of NATS.
const maxBody = 1 << 20

// encode returns v as msgpack or JSON.
func encode(v any, asJSON bool) ([]byte, error) {
	if asJSON {
		return stdjson.Marshal(v)
	}
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	resetEncoder(enc, &buf)
	err := enc.Encode(v)
	return buf.Bytes(), err
}

func resetEncoder(enc *msgpack.Encoder, w io.Writer) {
	enc.Reset(w)
	enc.SetCustomStructTag("json")
	enc.UseCompactInts(true)
}

// decodeAnswer reads what a worker sent: unknown fields are ignored, so that
// a newer worker may say more.
func decodeAnswer(data []byte, asJSON bool, v any) error {
	if asJSON {
		return json.Unmarshal(data, v)
	}
	if err := wellformed.Check(data, maxDepth); err != nil {
		return err
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(data))
	dec.SetCustomStructTag("json")
	return dec.Decode(v)
}

// decodeRequest reads a request into v, a pointer to a struct. Anything but
// the fields of v, each once, is Invalid and named. An empty body is an empty
// request.
func decodeRequest(data []byte, asJSON bool, v any) error {
	switch {
	case len(data) > maxBody:
		return sandbox.Errorf(sandbox.TooLarge, "the request has %d bytes, at most %d are allowed", len(data), maxBody)
	case len(data) == 0:
		return nil
	case asJSON:
		return decodeJSON(data, v)
	}
	return decodeMsgpack(data, v)
}

func decodeJSON(data []byte, v any) error {
	if err := checkDepth(data); err != nil {
		return err
	}
	err := json.Unmarshal(data, v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		field := strings.ReplaceAll(strings.TrimPrefix(string(e.JSONPointer), "/"), "/", ".")
		if errors.Is(err, json.ErrUnknownName) {
			return unknownField(field)
		}
		return wrongType(orBody(field), err)
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		field := strings.ReplaceAll(strings.TrimPrefix(string(e.JSONPointer), "/"), "/", ".")
		return sandbox.InvalidField(orBody(field), "the body is not JSON with each name once, at byte %d", e.ByteOffset).Wrap(err)
	}
	return wrongType("body", err)
}

// checkDepth refuses deep nesting before anything is built from it.
func checkDepth(data []byte) error {
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return nil //nolint:nilerr // what is wrong with the text is said by the decoding itself
		}
		if dec.StackDepth() > maxDepth {
			return sandbox.InvalidField("body", "nested more than %d deep", maxDepth)
		}
	}
}

// decodeMsgpack reads the top level by itself, so that it can name the field
// at fault and refuse one that comes twice.
func decodeMsgpack(data []byte, v any) error {
	if err := wellformed.Check(data, maxDepth); err != nil {
		return sandbox.InvalidField("body", "not one whole msgpack value, nested at most %d deep", maxDepth).Wrap(err)
	}
	r := bytes.NewReader(data)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	dec.SetCustomStructTag("json")
	dec.DisallowUnknownFields(true)
	n, err := dec.DecodeMapLen()
	if err != nil {
		return wrongType("body", err)
	}
	target := reflect.ValueOf(v).Elem()
	fields := fieldsOf(target.Type())
	seen := make(map[string]bool, len(fields))
	for range max(n, 0) {
		if err := decodeField(dec, target, fields, seen); err != nil {
			return err
		}
	}
	if r.Len() > 0 {
		return sandbox.InvalidField("body", "bytes follow the end of the request")
	}
	return nil
}

func decodeField(dec *msgpack.Decoder, target reflect.Value, fields map[string][]int, seen map[string]bool) error {
	name, err := dec.DecodeString()
	if err != nil {
		return wrongType("body", err)
	}
	index, ok := fields[name]
	if !ok {
		return unknownField(name)
	}
	if seen[name] {
		return sandbox.InvalidField(name, "the field is there twice")
	}
	seen[name] = true
	if err := dec.Decode(target.FieldByIndex(index).Addr().Interface()); err != nil {
		if inner, ok := unknownIn(err); ok {
			return unknownField(name + "." + inner)
		}
		return wrongType(name, err)
	}
	return nil
}

// unknownIn finds the field's name in the one error that msgpack has for it,
// which carries it as text only.
func unknownIn(err error) (string, bool) {
	_, quoted, ok := strings.Cut(err.Error(), "msgpack: unknown field ")
	if !ok {
		return "", false
	}
	return strings.Trim(quoted, `"`), true
}

func unknownField(field string) error {
	return sandbox.InvalidField(bounded(field), "there is no such field")
}

func wrongType(field string, cause error) error {
	return sandbox.InvalidField(bounded(field), "not of the form that this field has").Wrap(cause)
}

func orBody(field string) string {
	if field == "" {
		return "body"
	}
	return field
}

// bounded keeps a hostile field name short and on one line.
func bounded(field string) string {
	const most = 80
	if len(field) > most {
		field = field[:most]
	}
	return strings.Trim(fmt.Sprintf("%q", field), `"`)
}

// fieldCache maps a struct type to its fields by wire name.
var fieldCache sync.Map // reflect.Type → map[string][]int

func fieldsOf(t reflect.Type) map[string][]int {
	if known, ok := fieldCache.Load(t); ok {
		return known.(map[string][]int) //nolint:forcetypeassert // nothing else is stored
	}
	fields := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "-" || name == "" {
			continue
		}
		fields[name] = f.Index
	}
	fieldCache.Store(t, fields)
	return fields
}
