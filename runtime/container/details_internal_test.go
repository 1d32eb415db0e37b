package container

import (
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

// What the image says of a health check was put together with what the service says.
func TestTheHealthCheckStaysAsItWasPutTogether(t *testing.T) {
	check := &compose.Healthcheck{Test: []string{"CMD", "true"}, Interval: time.Second}
	c := Config{Service: &compose.Service{Healthcheck: &compose.Healthcheck{Interval: time.Second}}}
	c.Labels.Healthcheck = check
	if err := c.describe(mountedVolumes{}); err != nil || c.Labels.Healthcheck != check {
		t.Errorf("it is %+v, %v", c.Labels.Healthcheck, err)
	}
}

// A record that could not be read again would be left alone for good.
func TestDetailsThatNobodyCouldReadAreNotWritten(t *testing.T) {
	good := Details{Restart: compose.Restart{Mode: compose.RestartNo}, StopSignal: "SIGTERM", StopGrace: time.Second}
	expect.OK(t, expect.ErrorOf(good.encode()))
	huge, odd := good, good
	huge.PreStop = []compose.Hook{{Command: []string{strings.Repeat("x", maxDetails)}}}
	odd.Sources = []Source{{Path: "not/absolute", Real: "/"}}
	for name, d := range map[string]Details{"huge": huge, "odd": odd} {
		expect.ErrorWith(t, expect.ErrorOf(d.encode()), "cannot encode details", "%s", name)
	}
}
