// Package contain keeps a panic where it happens: the current work fails, and the rest of the
// program goes on.
//
// A panic is a mistake of this program, usually with one piece of its work: an unforeseen
// document, image or request. On a device that no one visits the other work is worth more than
// a clean end. So work on someone's behalf, one piece of many, goes through [Call]: a
// deployment, a poll, a project to restore, a DNS query, a request.
//
// Other panics end the process, and its supervisor restarts it: those before the loops begin,
// and in goroutines that only pass something on between a loop and the kernel or a containerd,
// whose end would leave the loop waiting unnoticed. Locks are released by defer. If one is
// not, its waiters hang, which the agent's watchdog notices.
//
// Faults that cannot be recovered from, such as concurrent map writes or exhausted memory,
// always end the process.
package contain

import (
	"fmt"
	"runtime/debug"
)

// maxStack limits, in bytes, what is kept of a stack: it begins with what matters.
const maxStack = 8 << 10

// Panic is a panic, as the error of the work it ended.
type Panic struct {
	Value any
	Stack string
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Call calls do, and returns a panic of it as a *Panic.
func Call(do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Caught(v)
		}
	}()
	return do()
}

// Caught makes an error of what recover returned. It must be called by the function that
// recovers. A *Panic passed on by another goroutine keeps its stack.
func Caught(v any) *Panic {
	if p, ok := v.(*Panic); ok {
		return p
	}
	stack := debug.Stack()
	return &Panic{v, string(stack[:min(len(stack), maxStack)])}
}
