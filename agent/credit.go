package agent

// credit is how far output may be sent: window bytes beyond what is
// acknowledged, where a gap costs nothing. Both ends keep one, so that each
// knows what the other may do.
type credit struct {
	window int64
	acked  int64
	lost   int64 // bytes of the gaps
	gaps   []span
}

// span is the gap [from, to).
type span struct{ from, to int64 }

// maxGaps bounds the gaps that wait for an acknowledgement.
const maxGaps = 1024

func newCredit(from, window int64) credit { return credit{window: window, acked: from} }

// limit is the offset below which output may be sent.
func (c *credit) limit() int64 { return c.acked + c.lost + c.window }

// full reports that no further gap may be sent before an acknowledgement.
func (c *credit) full() bool { return len(c.gaps) >= maxGaps }

func (c *credit) gap(from, to int64) {
	c.gaps = append(c.gaps, span{from, to})
	c.lost += to - from
}

// ack takes an acknowledgement of everything below offset. One that is lower
// than the last changes nothing.
func (c *credit) ack(offset int64) {
	c.acked = max(c.acked, offset)
	n := 0
	for n < len(c.gaps) && c.gaps[n].to <= c.acked {
		c.lost -= c.gaps[n].to - c.gaps[n].from
		n++
	}
	c.gaps = c.gaps[n:]
}
