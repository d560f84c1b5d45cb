package messaging

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"shoal/sandbox"
)

// Events calls each for what happens to one sandbox, or to all of the tenant
// when name is empty, until ctx ends, which is no error, or each fails. Events
// may be lost; [Client.Get] tells the truth.
func (c *Client) Events(ctx context.Context, name sandbox.Name, each func(Event) error) error {
	sub, err := c.nc.SubscribeSync(EventsSubject(c.tenant, name))
	if err != nil {
		return fmt.Errorf("subscribe to the events: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, nats.ErrSlowConsumer):
			continue // some were lost
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		}
		var e Event
		if err := decodeAnswer(m.Data, true, &e); err != nil {
			continue // not an event that we know
		}
		if err := each(e); err != nil {
			return err
		}
	}
}
