package runtime_test

import (
	"sync/atomic"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

// After a reboot the supervisor panics in the middle of one project: the others
// are back before it is said that all is, that one is tried again, and whoever
// wants to know is told.
func TestAPanicOfTheSupervisorIsOneProjectTriedAgain(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		const file = `
services:
  web: {image: BUSYBOX, command: [sleep, "1000"]}
  side: {image: BUSYBOX, command: [sleep, "1000"]}
`
		e := r.engine()
		r.apply(e, r.load(e, "clumsy", file))
		r.apply(e, r.load(e, "calm", file))
		r.reboot(e)

		var panicked atomic.Bool
		r.onStep = func(step string) {
			if step == "before start container web-1" && panicked.CompareAndSwap(false, true) {
				panic("no hands")
			}
		}
		told := make(chan error, 10)
		r.contained = func(_ string, err error) { told <- err }
		e = r.engine()
		r.supervise(e)
		<-e.Back()
		running := func(project string) bool {
			c := r.containers(e, project)
			return c["web"].State == runtime.Running && c["side"].State == runtime.Running
		}
		expect.True(t, running("clumsy") || running("calm"), "one project took the other along")
		if err := <-told; err == nil || err.Error() != "panic: no hands" {
			t.Errorf("what is told is %v", err)
		}
		expect.Eventually(r, "both run", func() bool { return running("clumsy") && running("calm") })
	})
}
