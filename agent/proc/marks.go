package proc

import (
	"errors"
	"sync"
)

// The range of marks. The image's /etc/group names them, so that id and groups
// do not complain, and they fit a user namespace of 65,536 ids.
const (
	FirstMark = 61000
	LastMark  = 62023
)

// ErrNoMark says that every mark is in use or still carried by some process.
var ErrNoMark = errors.New("no mark is free")

type markState uint8

const (
	markFree    markState = iota
	markUsed              // its command runs
	markKept              // its command has ended, its processes were kept
	markResting           // not in use; a process may still carry it
)

// Mark is one command's use of a mark. The zero value is no mark.
type Mark struct {
	number int
	use    uint64 // tells this use of the number from an earlier one
}

// Number is the group id that the command is started with.
func (m Mark) Number() int { return m.number }

// marks hands out marks. A number is free again only after a scan has shown that
// no process carries it.
type marks struct {
	mu    sync.Mutex
	clock uint64
	slots [LastMark - FirstMark + 1]slot
	free  []int // numbers, oldest first, so that each rests for long
}

type slot struct {
	state markState
	use   uint64 // the clock when the number was handed out
	since uint64 // the clock when the state changed
}

func newMarks() *marks {
	m := &marks{}
	for number := FirstMark; number <= LastMark; number++ {
		m.free = append(m.free, number)
	}
	return m
}

func isMark(n int) bool { return n >= FirstMark && n <= LastMark }

// now moves the clock on, so that changes and scans have an order.
func (m *marks) now() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	return m.clock
}

// take returns false when none is free.
func (m *marks) take() (Mark, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.free) == 0 {
		return Mark{}, false
	}
	number := m.free[0]
	m.free = m.free[1:]
	m.clock++
	m.slots[number-FirstMark] = slot{state: markUsed, use: m.clock, since: m.clock}
	return Mark{number: number, use: m.clock}, true
}

func (m *marks) set(mark Mark, to markState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.currentLocked(mark) {
		m.clock++
		s := &m.slots[mark.number-FirstMark]
		s.state, s.since = to, m.clock
	}
}

// current says whether the number still belongs to this use of it.
func (m *marks) current(mark Mark) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.currentLocked(mark)
}

func (m *marks) currentLocked(mark Mark) bool {
	return isMark(mark.number) && m.slots[mark.number-FirstMark].use == mark.use
}

func (m *marks) inUse(number int) bool {
	if !isMark(number) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slots[number-FirstMark].state
	return s == markUsed || s == markKept
}

// settle learns from a complete scan, begun at that clock, which numbers are
// carried. It frees those that were given back before and are carried by none.
func (m *marks) settle(began uint64, carried map[int]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.slots {
		s := &m.slots[i]
		number := FirstMark + i
		if carried[number] || s.since > began || s.state != markKept && s.state != markResting {
			continue
		}
		*s = slot{}
		m.free = append(m.free, number)
	}
}
