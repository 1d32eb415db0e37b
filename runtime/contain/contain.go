// Package contain keeps a panic where it happens: what was being done fails, and
// the rest of the program goes on.
//
// A panic is a mistake of this program, and as a rule of one piece of its work: a
// document, an image, a request that nobody had thought of. On a device that
// nobody visits the others are worth more than a clean end. So work on behalf of
// somebody, of which there may be more, is called with [Call]: a deployment, a
// poll, a project that is brought back, a question for a name, a request.
//
// What is not contained ends the process, and whoever supervises it starts it
// again: what is done before the loops begin, and goroutines that only pass
// something on between a loop and the kernel or a containerd, whose end would go
// unnoticed and leave the loop waiting. Locks are given back by defer. Where one
// is not, whoever waits for it stands still, which the watchdog of the agent
// notices.
//
// Faults that the Go runtime does not let anybody recover from, as two writers of
// a map or memory that is exhausted, end the process in any case.
package contain

import (
	"fmt"
	"runtime/debug"
)

// maxStack bounds, in bytes, what is kept of a stack: it begins with what matters.
const maxStack = 8 << 10

// Panic is a panic as the error of what was being done.
type Panic struct {
	Value any
	Stack string
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Call calls do. If that panics, the error is a *Panic.
func Call(do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Caught(v)
		}
	}()
	return do()
}

// Caught makes an error of what recover returned, in the function that calls it.
// A *Panic that was passed on by another goroutine keeps its stack.
func Caught(v any) *Panic {
	if p, ok := v.(*Panic); ok {
		return p
	}
	stack := debug.Stack()
	return &Panic{v, string(stack[:min(len(stack), maxStack)])}
}
