package external_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/external"
	"github.com/margolite/margolite/test/containerdtest"
)

func TestConnectMakesTheNamespace(t *testing.T) {
	client := containerdtest.Official(t, containerdtest.External(t))
	names, err := client.NamespaceService().List(t.Context())
	if err != nil || len(names) != 1 || names[0] != containerdtest.Namespace {
		t.Errorf("namespaces are %v, %v", names, err)
	}
	// The namespace is the default of every call.
	if containers, err := client.Containers(t.Context()); err != nil || len(containers) != 0 {
		t.Errorf("containers are %v, %v", containers, err)
	}
}

func TestConnectWaitsNoLongerThanItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	_, err := external.Connect(ctx, socket, "margo")
	if err == nil || ctx.Err() == nil || !strings.Contains(err.Error(), socket) || errors.Is(err, context.Canceled) {
		t.Errorf("without a containerd: %v", err)
	}
}
