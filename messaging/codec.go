package messaging

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

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

// decodeMsgpack reads a body strictly, which the library does not do.
func decodeMsgpack(data []byte, v any) error {
	if err := wellformed.Check(data, maxDepth); err != nil {
		return sandbox.InvalidField("body", "not one whole msgpack value, nested at most %d deep", maxDepth).Wrap(err)
	}
	r := bytes.NewReader(data)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	if err := decodeStruct(dec, reflect.ValueOf(v).Elem(), ""); err != nil {
		return err
	}
	if r.Len() > 0 {
		return sandbox.InvalidField("body", "bytes follow the end of the request")
	}
	return nil
}

// decodeStruct reads a map into a struct by itself, so that it can name the
// field at fault by the way that leads there, and refuse one that comes twice.
func decodeStruct(dec *msgpack.Decoder, target reflect.Value, path string) error {
	n, err := dec.DecodeMapLen()
	if err != nil {
		return wrongType(orBody(path), err)
	}
	fields := fieldsOf(target.Type())
	seen := make(map[string]bool, len(fields))
	for range max(n, 0) {
		name, err := dec.DecodeString()
		if err != nil {
			return wrongType(orBody(path), err)
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		index, ok := fields[name]
		if !ok {
			return unknownField(at)
		}
		if seen[name] {
			return sandbox.InvalidField(at, "the field is there twice")
		}
		seen[name] = true
		if err := decodeValue(dec, target.FieldByIndex(index), at); err != nil {
			return err
		}
	}
	return nil
}

func decodeValue(dec *msgpack.Decoder, v reflect.Value, path string) error {
	switch t := v.Type(); {
	case v.CanInt() || v.CanUint():
		return decodeInt(dec, v, path)
	case t.Kind() == reflect.Struct:
		return decodeStruct(dec, v, path)
	case t.Kind() == reflect.Pointer:
		if code, err := dec.PeekCode(); err != nil || code == msgpcode.Nil {
			return dec.DecodeNil()
		}
		v.Set(reflect.New(t.Elem()))
		return decodeValue(dec, v.Elem(), path)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return decodeStructs(dec, v, path)
	}
	if err := dec.Decode(v.Addr().Interface()); err != nil {
		return wrongType(path, err)
	}
	return nil
}

func decodeStructs(dec *msgpack.Decoder, list reflect.Value, path string) error {
	n, err := dec.DecodeArrayLen()
	if err != nil {
		return wrongType(path, err)
	}
	for i := range max(n, 0) {
		list.Set(reflect.Append(list, reflect.Zero(list.Type().Elem())))
		if err := decodeStruct(dec, list.Index(i), path+"."+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

// decodeInt reads an integer that fits: the library cuts one that does not.
func decodeInt(dec *msgpack.Decoder, v reflect.Value, path string) error {
	code, peeked := dec.PeekCode()
	n, err := dec.DecodeInt64()
	if err = errors.Join(peeked, err); err != nil {
		return wrongType(path, err)
	}
	beyond := code == msgpcode.Uint64 && n < 0 // more than an int64 holds
	switch {
	case v.CanInt() && !beyond && !v.OverflowInt(n):
		v.SetInt(n)
	case v.CanUint() && (beyond || n >= 0) && !v.OverflowUint(uint64(n)):
		v.SetUint(uint64(n))
	default:
		return wrongType(path, nil)
	}
	return nil
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
