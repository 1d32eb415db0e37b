// Package dockerregistry starts Debian's docker-registry for tests: the reference implementation, of Docker.
package dockerregistry

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// Start runs a registry on the loopback device that speaks plain HTTP, until the test ends, and returns its host:port.
// more are further lines of its configuration. The test is skipped where the program is missing.
func Start(t testing.TB, more string) string {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("docker-registry is not installed")
	}
	dir := t.TempDir()
	host := unused(t)
	config := filepath.Join(dir, "config.yml")
	text := "version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: " + dir + "}}\nhttp: {addr: \"" + host + "\"}\n" + more
	expect.Check(t, os.WriteFile(config, []byte(text), 0o600))
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "serve", config)
	expect.Check(t, cmd.Start())
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
	})
	expect.Eventually(t, "the registry answers", func() bool {
		answer, err := http.Get("http://" + host + "/v2/")
		if err == nil {
			answer.Body.Close()
		}
		return err == nil
	})
	return host
}

// unused is an address at which nobody listens.
func unused(t testing.TB) string {
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}
