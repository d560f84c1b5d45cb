package filter

import (
	"testing"
	"time"
)

// A pace must not hold back what is no bulk, nor a sender that waits for it.
func TestPace(t *testing.T) {
	const step = 100 * time.Microsecond
	for name, c := range map[string]struct {
		piece int           // bytes each step
		want  time.Duration // the wait at the end
	}{
		"an exchange of small messages": {200, 0},
		"just no bulk":                  {6 << 10, 0},
		"slow bulk":                     {8 << 10, longestNap},
		"bulk":                          {32 << 10, 400 * time.Microsecond},
		"quick bulk":                    {128 << 10, 100 * time.Microsecond},
		"the sender waits for us":       {nearlyFull, 0},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1, 0)
			p := pace{since: now}
			var got time.Duration
			for range 40 {
				now = now.Add(step)
				got = p.read(c.piece, now)
			}
			if got != c.want {
				t.Errorf("waits %v, want %v", got, c.want)
			}
			if got := p.read(10, now.Add(50*time.Millisecond)); got != 0 || p.inBulk() {
				t.Errorf("waits %v after a silence", got)
			}
		})
	}
}
