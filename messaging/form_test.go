package messaging

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"shoal/sandbox"
)

// leaves calls fn for every field of a request's type, those of its parts too,
// with the wire names that lead there.
func leaves(t reflect.Type, path []string, fn func(path []string, t reflect.Type)) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		t = t.Elem()
	}
	if len(path) > 0 {
		fn(path, t)
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for name, index := range fieldsOf(t) {
		leaves(t.FieldByIndex(index).Type, append(slices.Clip(path), name), fn)
	}
}

// wrongForms returns values that a field of type t does not have, those among
// them that a careless decoder makes fit.
func wrongForms(t reflect.Type) []any {
	switch t.Kind() {
	case reflect.String:
		return []any{5, true, []any{}, map[string]any{}}
	case reflect.Bool:
		return []any{1, "true", []any{}}
	case reflect.Int, reflect.Int64:
		return []any{"1", 1.5, true, []any{}, uint64(1 << 63)}
	case reflect.Uint16:
		return []any{"1", 1.5, true, -1, 1 << 16}
	case reflect.Uint32:
		return []any{"1", 1.5, true, -1, 1 << 32}
	case reflect.Uint64:
		return []any{"1", 1.5, true, -1}
	case reflect.Float64:
		return []any{"1", true, []any{}}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return []any{5, true, map[string]any{}}
		}
		return []any{5, "x", map[string]any{}, []any{[]any{}}}
	case reflect.Map:
		return []any{5, "x", []any{}, map[string]any{"a": []any{}}}
	}
	return []any{5, "x"}
}

// bodyWith returns a body with one value at a path.
func bodyWith(path []string, v any) any {
	for i, name := range slices.Backward(path) {
		v = map[string]any{name: v}
		if i > 0 && path[i-1] == "setup" {
			v = []any{v}
		}
	}
	return v
}

// Every field of every request is refused in each wrong form, in both
// encodings, and the error names the way to it.
func TestFormsOfEveryField(t *testing.T) {
	t.Parallel()
	requests := map[Op]func() any{"data": func() any { return new(DataRequest) }, "ack": func() any { return new(StreamRequest) }}
	for op, o := range operations {
		requests[op] = func() any { return o.request() }
	}
	for op, request := range requests {
		leaves(reflect.TypeOf(request()).Elem(), nil, func(path []string, ft reflect.Type) {
			field := strings.Join(path, ".")
			for _, v := range wrongForms(ft) {
				refused(t, op, field, request, bodyWith(path, v))
			}
		})
	}
}

func refused(t *testing.T, op Op, field string, request func() any, body any) {
	t.Helper()
	for _, asJSON := range []bool{true, false} {
		data, err := encode(body, asJSON)
		if err != nil {
			t.Fatal(err)
		}
		v := request()
		err = decodeRequest(data, asJSON, v)
		if sandbox.CodeOf(err) != sandbox.Invalid {
			t.Errorf("%s %v (json %t): taken as %+v", op, body, asJSON, v)
			continue
		}
		named := strings.ReplaceAll(sandbox.AsError(err).Field, "setup.0", "setup")
		if named != field && !strings.HasPrefix(named, field+".") {
			t.Errorf("%s %v (json %t): names %q, want %q", op, body, asJSON, named, field)
		}
	}
}

// What a body says twice is refused at every depth, in both encodings.
func TestFieldsThatComeTwice(t *testing.T) {
	t.Parallel()
	id := []byte{0xa2, 'i', 'd', 0xa1, 'c'}
	body := slices.Concat([]byte{0x81, 0xa7}, []byte("command"), []byte{0x82}, id, id)
	for _, err := range []error{
		decodeRequest(body, false, new(ExecRequest)),
		decodeRequest([]byte(`{"command":{"id":"c","id":"c"}}`), true, new(ExecRequest)),
	} {
		if sandbox.CodeOf(err) != sandbox.Invalid || sandbox.AsError(err).Field != "command.id" {
			t.Errorf("%v, want invalid naming command.id", err)
		}
	}
}

// Each bound of a request that package sandbox does not check, from both sides.
func TestBoundsOfRequests(t *testing.T) {
	t.Parallel()
	box := Target{Sandbox: "a"}
	file := PathTarget{Target: box, Path: "/a"}
	cmd := sandbox.Command{ID: "c", Shell: "true"}
	for _, c := range []struct {
		valid, invalid request
		field          string
	}{
		{&ListRequest{Limit: MaxListed}, &ListRequest{Limit: MaxListed + 1}, "limit"},
		{&ListRequest{}, &ListRequest{Limit: -1}, "limit"},
		{&ExecRequest{Target: box, Command: cmd, Window: MinWindow}, &ExecRequest{Target: box, Command: cmd, Window: MinWindow - 1}, "window"},
		{&ExecRequest{Target: box, Command: cmd, Window: DefaultWindow}, &ExecRequest{Target: box, Command: cmd, Window: DefaultWindow + 1}, "window"},
		{&FollowRequest{Target: box, ID: "c", From: -1}, &FollowRequest{Target: box, ID: "c", From: -2}, "from"},
		{
			&KillRequest{Target: box, Kill: sandbox.KillRequest{All: true, By: strings.Repeat("x", 64)}},
			&KillRequest{Target: box, Kill: sandbox.KillRequest{All: true, By: strings.Repeat("x", 65)}},
			"kill.by",
		},
		{&WriteRequest{PathTarget: file, Data: make([]byte, MaxInline), WriteOptions: sandbox.WriteOptions{Size: MaxInline}}, &WriteRequest{PathTarget: file, Data: make([]byte, MaxInline+1), WriteOptions: sandbox.WriteOptions{Size: -1}}, "data"},
		{&WriteRequest{PathTarget: file, Upload: true, WriteOptions: sandbox.WriteOptions{Size: 5}}, &WriteRequest{PathTarget: file, WriteOptions: sandbox.WriteOptions{Size: 5}}, "size"},
		{&MkdirRequest{PathTarget: file, Mode: 0o777}, &MkdirRequest{PathTarget: file, Mode: 0o1000}, "mode"},
		{&TarPutRequest{PathTarget: file, Size: -1}, &TarPutRequest{PathTarget: file, Size: -2}, "size"},
		{&ForwardRequest{Target: box, Port: 1}, &ForwardRequest{Target: box}, "port"},
		{&ForwardRequest{Target: box, Port: 65535}, &ForwardRequest{Target: box, Port: 65536}, "port"},
		{&DataRequest{Data: make([]byte, MaxUpload)}, &DataRequest{Data: make([]byte, MaxUpload+1)}, "data"},
		{&DataRequest{}, &DataRequest{Offset: -1}, "offset"},
		{&StdinRequest{Data: make([]byte, MaxStdin)}, &StdinRequest{Data: make([]byte, MaxStdin+1)}, "data"},
		{&SignalRequest{Seq: 1, Signal: 1}, &SignalRequest{Seq: 1}, "signal"},
		{&SignalRequest{Seq: 1, Signal: 64}, &SignalRequest{Seq: 1, Signal: 65}, "signal"},
		{&ResizeRequest{Seq: 1, TTY: sandbox.TTY{Rows: 1, Cols: 4096}}, &ResizeRequest{Seq: 1, TTY: sandbox.TTY{Rows: 1, Cols: 4097}}, "cols"},
		{&ResizeRequest{Seq: 1, TTY: sandbox.TTY{Rows: 4096, Cols: 1}}, &ResizeRequest{Seq: 1, TTY: sandbox.TTY{Rows: 4097, Cols: 1}}, "rows"},
		{&LockAcquireRequest{Target: box, Tag: "t", Holder: strings.Repeat("x", maxHolder)}, &LockAcquireRequest{Target: box, Tag: "t", Holder: strings.Repeat("x", maxHolder+1)}, "holder"},
		{&LockAcquireRequest{Target: box, Tag: AllTags, TTL: 2000}, &LockAcquireRequest{Target: box, Tag: AllTags, TTL: 1999}, "ttlMs"},
		{&LockAcquireRequest{Target: box, Tag: "t", TTL: 3600000}, &LockAcquireRequest{Target: box, Tag: "t", TTL: 3600001}, "ttlMs"},
		{&LockAcquireRequest{Target: box, Tag: "t", Wait: 600000}, &LockAcquireRequest{Target: box, Tag: "t", Wait: 600001}, "waitMs"},
		{&LockRenewRequest{Target: box, Tag: "t", Token: "x"}, &LockRenewRequest{Target: box, Tag: "t", Token: "x", TTL: 1999}, "ttlMs"},
	} {
		if err := c.valid.Validate(); err != nil {
			t.Errorf("%T %+v: %v", c.valid, c.valid, err)
		}
		if err := c.invalid.Validate(); sandbox.CodeOf(err) != sandbox.Invalid || sandbox.AsError(err).Field != c.field {
			t.Errorf("%T: %v, want invalid naming %s", c.invalid, err, c.field)
		}
	}
}
