package egress

import (
	"sync/atomic"
	"time"
)

// watchdog calls fire once when nothing was touched for its limit. A touch is two
// atomic operations; the timer runs at most once per limit.
type watchdog struct {
	base  time.Time    // for a clock that does not jump
	last  atomic.Int64 // of the last touch, since base
	limit atomic.Int64
	timer *time.Timer
	fire  func()
}

func newWatchdog(limit time.Duration, fire func()) *watchdog {
	w := &watchdog{base: time.Now(), fire: fire}
	w.limit.Store(int64(limit))
	w.timer = time.AfterFunc(time.Hour, w.check)
	w.timer.Reset(limit)
	return w
}

func (w *watchdog) touch() { w.last.Store(int64(time.Since(w.base))) }

func (w *watchdog) check() {
	left := time.Duration(w.limit.Load() + w.last.Load() - int64(time.Since(w.base)))
	if left > 0 {
		w.timer.Reset(left)
		return
	}
	w.fire()
}

// shorten lowers the limit to d, counted from now.
func (w *watchdog) shorten(d time.Duration) {
	if int64(d) >= w.limit.Load() {
		return
	}
	w.touch()
	w.limit.Store(int64(d))
	w.timer.Reset(d)
}

func (w *watchdog) stop() { w.timer.Stop() }
