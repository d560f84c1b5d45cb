package threads

import (
	"runtime"
	"sync"
)

// Park makes sure that the process has at least n threads besides those in use,
// and leaves them to the Go runtime, which keeps idle threads for good. Blocking
// calls on up to n goroutines at once then need no new thread.
func Park(n int) {
	var all, done sync.WaitGroup
	all.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		})
	}
	done.Wait()
}
