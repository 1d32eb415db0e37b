package uplink_test

import (
	"os"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	check(t, os.WriteFile(to, expect.Value(os.ReadFile(from))(t), 0o600))
}

func readBundle(file string) (*identity.TrustBundle, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return identity.ParseTrustBundle(content)
}

func chmod(t *testing.T, file string, mode os.FileMode) {
	t.Helper()
	check(t, os.Chmod(file, mode))
}

func remove(t *testing.T, file string) {
	t.Helper()
	check(t, os.Remove(file))
}

func inject(t *testing.T, w *wfmsim.Server, f fault.Fault) {
	t.Helper()
	expect.Value(w.Faults().Inject(f))(t)
}

// clockFault lets the WFM tell another time.
func clockFault(by time.Duration) fault.Fault { return fault.Fault{Kind: fault.Clock, Wait: by} }
