package contain_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/test/expect"
)

func stumble() error { return note(nil, "one") }

func note(deployments map[string]int, id string) error {
	deployments[id] = 1
	return nil
}

func TestAPanicIsAnError(t *testing.T) {
	err := fmt.Errorf("cannot work on it: %w", contain.Call(stumble))
	var p *contain.Panic
	expect.Require(t, errors.As(err, &p), "error is %v, want a panic", err)
	if !strings.Contains(err.Error(), "assignment to entry in nil map") || !strings.Contains(p.Stack, "stumble") {
		t.Errorf("error is %v, stack:\n%s", err, p.Stack)
	}
}

// Another goroutine's panic is told with the stack of where it happened.
func TestAPanicThatIsPassedOnKeepsItsStack(t *testing.T) {
	passed := make(chan error)
	go func() { passed <- contain.Call(stumble) }()
	inner := <-passed
	err := contain.Call(func() error { panic(inner) })
	expect.Error(t, err, inner, "err")
}

func TestWithoutAPanicTheErrorIsTheCallees(t *testing.T) {
	want := errors.New("no")
	expect.Error(t, contain.Call(func() error { return want }), want, "error")
	expect.Error(t, contain.Call(func() error { return nil }), nil, "error")
}
