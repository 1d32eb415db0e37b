//go:build field

package field

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/plant"
)

func TestMain(m *testing.M) {
	os.Exit(plant.RunTests(m, plant.BuildAgent, nil))
}

// start starts a program that ends with the test.
func start(t *testing.T, dir, log string, env []string, name string, args ...string) *exec.Cmd {
	t.Helper()
	out := expect.Value(os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), out, out
	expect.Check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// listens waits until somebody listens at an address.
func listens(t *testing.T, address string) {
	t.Helper()
	plant.Require(t, "somebody listens at "+address, func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// lab is a device, for a WFM of somebody else.
type lab struct {
	*plant.Plant
	t     *testing.T
	dir   string
	began time.Time
}

// newLab is a device with a registry that holds the demonstration. way is how it and its
// WFM know each other.
func newLab(t *testing.T, way plant.Way) *lab {
	t.Helper()
	application := expect.Value(plant.BuildApplication(t.Context(), "1.0.0"))(t)
	p := plant.NewForTest(t, plant.Options{Application: application, Way: way})
	l := &lab{Plant: p, t: t, dir: p.Dir()}
	t.Cleanup(func() {
		l.Kill()
		if _, err := l.Margolite(context.WithoutCancel(t.Context()), "clear", "--yes"); err != nil {
			t.Errorf("the device is not rid of what it ran: %v", err)
		}
	})
	return l
}

// server issues a certificate for servers on this machine, and gives its authority as a file
// and as a pool.
func (l *lab) server(certificate, key string) (ca string, roots *x509.CertPool) {
	l.t.Helper()
	authority := expect.Value(pki.NewServerAuthority("Field", time.Now()))(l.t)
	server := expect.Value(authority.IssueServer([]string{"127.0.0.1", "localhost"}))(l.t)
	keyPEM := expect.Value(server.KeyPEM())(l.t)
	ca = filepath.Join(l.dir, "server-ca.pem")
	for file, content := range map[string][]byte{certificate: server.CertificatePEM(), key: keyPEM, ca: authority.RootPEM()} {
		expect.Check(l.t, os.MkdirAll(filepath.Dir(file), 0o700))
		expect.Check(l.t, os.WriteFile(file, content, 0o600))
	}
	return ca, authority.Pool()
}

// step notes what was reached.
func (l *lab) step(text string) {
	l.t.Logf("%6.1f s  %s", time.Since(l.began).Seconds(), text)
}

// greets waits until the application says something.
func (l *lab) greets(want string) {
	l.t.Helper()
	expect.Value(plant.Visit(l.t.Context(), 8090, want))(l.t)
}

// silent waits until the application is gone.
func (l *lab) silent() {
	l.t.Helper()
	plant.Require(l.t, "the application is gone", func() error {
		if a, err := plant.Ask(l.t.Context(), 8090); err == nil {
			return fmt.Errorf("the application still says %+v", a)
		}
		return nil
	})
}
