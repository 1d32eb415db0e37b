package compose_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]unix.Signal{
		"": unix.SIGTERM, "SIGTERM": unix.SIGTERM, "term": unix.SIGTERM, "15": unix.SIGTERM,
		"SIGQUIT": unix.SIGQUIT, "RTMIN+3": 37, "SIGRTMIN": 34, "SIGRTMAX-1": 63, "9": unix.SIGKILL,
	} {
		got, err := compose.ParseSignal(text)
		expect.OK(t, err)
		expect.Equal(t, got, want, "signal %q", text)
	}
	for _, text := range []string{"0", "65", "-1", "SIGNONE", "RTMIN+100", "RTMIN-1", "RTMAX+1"} {
		expect.ErrorWith(t, expect.ErrorOf(compose.ParseSignal(text)), "is not a signal", "signal %q", text)
	}
}

func FuzzParseSignal(f *testing.F) {
	for _, s := range []string{"SIGTERM", "9", "RTMIN+3", "RTMAX-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := compose.ParseSignal(s); err == nil && (got < 1 || got > 64) {
			t.Errorf("%q is read as %d", s, got)
		}
	})
}

func FuzzDeviceRule(f *testing.F) {
	for _, s := range []string{"c 188:* rwm", "a *:* m", "b 8:1 r", "c 1:3", "x 1:3 r", "c 1 r", "c 1:99999999999 r", "c 1:3 ", "", "c -1:3 r", "c : r"} {
		f.Add(s)
	}
	number := func(n *int64) string {
		if n == nil {
			return "*"
		}
		return fmt.Sprint(*n)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rule, ok := compose.ParseDeviceRule(text)
		read := fmt.Sprintf("%s %s:%s %s", rule.Type, number(rule.Major), number(rule.Minor), rule.Access)
		expect.True(t, !ok || read == text || strings.Contains(text, "0"), "%q is read as %q", text, read)
	})
}

func TestRestart(t *testing.T) {
	tests := []struct {
		policy   compose.Restart
		code     int
		failures int
		again    bool
		oneShot  bool
	}{
		{compose.Restart{Mode: compose.RestartNo}, 0, 0, false, true},
		{compose.Restart{Mode: compose.RestartAlways}, 0, 100, true, false},
		{compose.Restart{Mode: compose.RestartUnlessStopped}, 137, 100, true, false},
		{compose.Restart{Mode: compose.RestartOnFailure}, 0, 0, false, true},
		{compose.Restart{Mode: compose.RestartOnFailure}, 1, 100, true, true},
		{compose.Restart{Mode: compose.RestartOnFailure, MaxRetries: 2}, 1, 1, true, true},
		{compose.Restart{Mode: compose.RestartOnFailure, MaxRetries: 2}, 1, 2, false, true},
	}
	for _, test := range tests {
		expect.Equal(t, test.policy.After(test.code, test.failures), test.again, "%v after code %d and %d failures", test.policy, test.code, test.failures)
		expect.Equal(t, test.policy.OneShot(), test.oneShot, "one-shot of %v", test.policy)
	}
}
