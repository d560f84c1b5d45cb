package messaging

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// lossy drops some of the messages that reach a client, once each.
func lossy(c *Client, drop func(n int) bool) {
	n := 0
	err := c.sub.Unsubscribe()
	if err != nil {
		panic(err)
	}
	c.sub, err = c.nc.Subscribe(c.inbox+".*", func(m *nats.Msg) {
		n++
		if !drop(n) {
			c.deliver(m)
		}
	})
	if err != nil {
		panic(err)
	}
}

// Lossy lets the tests of the client drop what reaches it.
func Lossy(_ *testing.T, c *Client, drop func(n int) bool) { lossy(c, drop) }

// ProbeAfter is how soon a client asks after a silent worker.
const ProbeAfter time.Duration = probeAfter

// RuledFields are the fields of every request, by operation, that are more than
// a choice of yes or no.
func RuledFields(_ *testing.T) map[Op][]string {
	all := map[Op][]string{}
	for op, o := range operations {
		all[op] = []string{}
		leaves(reflect.TypeOf(o.request()).Elem(), nil, func(path []string, t reflect.Type) {
			if k := t.Kind(); k != reflect.Bool && k != reflect.Struct {
				all[op] = append(all[op], strings.Join(path, "."))
			}
		})
	}
	return all
}
