package fleet

import "time"

// steady is the clock by which ages are judged: it began as the machine's and
// goes on with its monotonic clock, so that a machine whose time is set neither
// expires everything at once nor nothing any more. Time that the machine spends
// suspended does not count.
type steady struct {
	wall  time.Time // when it began
	began time.Time // the same, with the monotonic reading
}

func newSteady() steady {
	now := time.Now()
	return steady{wall: now.Round(0), began: now}
}

func (s steady) now() time.Time { return s.wall.Add(time.Since(s.began)) }
