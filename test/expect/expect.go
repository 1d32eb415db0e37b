// Package expect states in one line what a test expects; a test that gets something
// else fails with both, and goes on. What is compared is said as for fmt.Sprintf.
package expect

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Equal expects a value, compared as reflect.DeepEqual does it.
func Equal[T any](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	verb := "%+v"
	switch any(got).(type) {
	case string, []string, []byte:
		verb = "%q"
	}
	t.Errorf("%s: got "+verb+", want "+verb, fmt.Sprintf(what, args...), got, want)
}

// True expects that something is so; otherwise the test fails with what is said, and goes
// on.
func True(t testing.TB, so bool, said string, args ...any) {
	t.Helper()
	if !so {
		t.Errorf(said, args...)
	}
}

// Require is True for what the rest of the test needs: it ends the test.
func Require(t testing.TB, so bool, said string, args ...any) {
	t.Helper()
	if !so {
		t.Fatalf(said, args...)
	}
}

// Contains expects text with a part in it.
func Contains(t testing.TB, text, part, what string, args ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s: %q is not in:\n%s", fmt.Sprintf(what, args...), part, text)
	}
}

// Error expects an error that is, or wraps, another one; nil: none.
func Error(t testing.TB, err, want error, what string, args ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", fmt.Sprintf(what, args...), err, want)
	}
}

// ErrorOf is the error of a call whose value does not matter.
func ErrorOf[T any](_ T, err error) error { return err }

// OK expects no error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// ErrorWith expects an error whose text has a part in it.
func ErrorWith(t testing.TB, err error, part, what string, args ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%s: got error %v, want one with %q", fmt.Sprintf(what, args...), err, part)
	}
}

// Check ends the test for an error.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value is the value of a call that does not fail, as in Value(os.ReadFile(path))(t);
// an error ends the test.
func Value[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Check(t, err)
		return v
	}
}

// Must is Value where no test is at hand; an error panics.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Eventually waits until something is so; what takes more than two minutes ends the test.
func Eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

// Receive is what comes on a channel; what takes more than two minutes ends the test.
func Receive[T any](t testing.TB, what string, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(2 * time.Minute):
		t.Fatalf("not within two minutes: %s", what)
	}
	return got
}

// Answer is what a call returns that must not take more than two minutes.
func Answer[T any](t testing.TB, what string, call func() T) T {
	t.Helper()
	answers := make(chan T, 1)
	go func() { answers <- call() }()
	return Receive(t, what, answers)
}
