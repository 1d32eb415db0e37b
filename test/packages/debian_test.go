//go:build packages

package packages

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/plant"
)

// packagesDir is where the packages are.
const packagesDir = "MARGOLITE_PACKAGES"

func TestMain(m *testing.M) {
	if isolated.Outside() {
		if err := prepareArchive(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(isolated.Main(m))
}

// packageOf is the file of a package for this machine.
func packageOf(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(os.Getenv(packagesDir), pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s=%s: %v %v, want one", pattern, packagesDir, os.Getenv(packagesDir), found, err)
	}
	return found[0]
}

// daemon is the agent as it was installed.
type daemon struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

func (s *system) start() *daemon {
	s.t.Helper()
	d := &daemon{cmd: s.command("/usr/bin/margolite", "run")}
	d.cmd.Stderr = &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	expect.Check(s.t, d.cmd.Start())
	return d
}

func (d *daemon) stop(t *testing.T) {
	t.Helper()
	expect.Check(t, d.cmd.Process.Signal(syscall.SIGTERM))
	if err := d.cmd.Wait(); err != nil {
		t.Fatalf("the agent ended with %v\n%s", err, d.log.String())
	}
}

// The package is installed on a Debian that was just made, waits, is enrolled by
// files that appear, runs an application through an upgrade, and is purged.
func TestTheDebianPackage(t *testing.T) {
	deb := packageOf(t, "margolite_*_"+debianArch()+".deb")
	ctx := t.Context()
	application := expect.Value(plant.BuildApplication(ctx, "1.0.0"))(t)
	dir := t.TempDir()
	p := expect.Value(plant.New(ctx, plant.Options{Dir: dir, Application: application}))(t)
	t.Cleanup(func() { expect.OK(t, p.Close()) })
	s := newSystem(t)
	where := leftovers.Where{Namespace: "margo", StateDir: filepath.Join(s.root, "var/lib/margolite"), RunDir: filepath.Join(s.root, "run/margolite")}
	files, before := s.files(), leftovers.Take(t, where)

	s.install(deb)
	if out := s.run("margolite", "version"); !strings.HasPrefix(out, "margolite ") {
		t.Errorf("margolite version prints %q", out)
	}
	said, _ := s.command("margolite", "check").CombinedOutput() // there is no WFM yet
	for line := range strings.Lines(string(said)) {
		expect.True(t, !strings.HasPrefix(line, "failed") || strings.Contains(line, "no WFM is configured"), "check: %s", line)
	}

	d := s.start()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent said:\n%s", d.log.String())
		}
	})
	expect.Check(t, p.Enrol("127.0.0.1", func(name string, data []byte) { s.put("etc/margolite/provision.d/"+name, data) }))
	client := control.Dial(filepath.Join(s.root, "run/margolite/control.sock"))
	plant.Require(t, "the agent is enrolled", func() error { return client.Ping(ctx) })

	const id = "2f9a1c34-0000-4000-8000-0000000000de"
	published := expect.Value(p.Publish(p.Deployment(id, nil)))(t)
	expect.Value(p.Await(ctx, id, margo.Installed, published.Version))(t)
	visit := func() error { _, err := plant.Ask(ctx, 8090); return err }
	plant.Require(t, "the application answers", visit)
	processes := func() []string { return leftovers.Take(t, leftovers.Where{Namespace: "margo"})["process"] }
	running := processes()
	expect.True(t, len(running) >= 3, "these processes run: %v", running)

	s.install(deb) // which is an upgrade
	expect.Equal(t, processes(), running, "processes after the upgrade")
	d.stop(t)
	d = s.start()
	plant.Require(t, "the new agent answers", func() error { return client.Ping(ctx) })
	plant.Require(t, "the application answers after the restart", visit)
	expect.Equal(t, processes(), running, "processes after the restart")
	d.stop(t)

	s.run("dpkg", "--remove", "margolite")
	expect.True(t, visit() != nil, "the application answers although its package was removed")
	for _, kept := range []string{"/etc/margolite/config.yaml", "/var/lib/margolite/margolite.db", "/var/lib/margolite/volumes"} {
		expect.True(t, s.has(kept), "removing the package took %s along, which is for purging it", kept)
	}
	s.run("dpkg", "--purge", "margolite")
	for _, difference := range before.Differences(leftovers.Take(t, where)) {
		t.Error(difference)
	}
	for _, path := range s.files() {
		expect.True(t, slices.Contains(files, path), "purging the package left %s", path)
	}
}

// margolite-slim was the package for the containerd of the system. A device that had
// it goes on using that containerd after an upgrade to margolite.
func TestTheDebianPackageReplacesItsFormer(t *testing.T) {
	deb := packageOf(t, "margolite_*_"+debianArch()+".deb")
	const config = "etc/margolite/config.yaml"
	s := newSystem(t)
	s.run("mkdir", "-p", "/tmp/slim/DEBIAN", "/tmp/slim/etc/margolite")
	s.put("tmp/slim/DEBIAN/control", fmt.Appendf(nil, `Package: margolite-slim
Version: 0
Architecture: %s
Maintainer: nobody <nobody@example.com>
Provides: margolite-agent
Conflicts: margolite-agent
Replaces: margolite-agent
Description: what the former package had for dpkg
`, debianArch()))
	s.put("tmp/slim/DEBIAN/conffiles", []byte("/"+config+"\n"))
	s.put("tmp/slim/DEBIAN/postrm", []byte("#!/bin/sh\n[ ! -e /usr/bin/margolite ] || exit 0\n[ \"$1\" != purge ] || rm -rf /etc/margolite\n"))
	s.run("chmod", "755", "/tmp/slim/DEBIAN/postrm")
	s.put("tmp/slim/"+config, []byte("runtime:\n  containerd: /run/containerd/containerd.sock\n"))
	s.run("dpkg-deb", "--root-owner-group", "--build", "/tmp/slim", "/tmp/slim.deb")
	s.run("dpkg", "-i", "/tmp/slim.deb")

	s.install(deb)
	expect.Equal(t, s.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "margolite-slim"), "config-files", "margolite-slim")
	s.run("dpkg", "--purge", "margolite-slim")
	for _, again := range []string{"the upgrade", "another one"} {
		got := s.run("cat", "/"+config)
		if !strings.Contains(got, "\n  containerd: /run/containerd/containerd.sock\n") || !strings.Contains(got, "\nwfm:\n") {
			t.Errorf("after %s the configuration is\n%s", again, got)
		}
		s.install(deb)
	}
	s.run("dpkg", "--purge", "margolite")
}

// debianArch is Debian's name of this machine's architecture.
func debianArch() string {
	if runtime.GOARCH == "arm" {
		return "armhf"
	}
	return runtime.GOARCH
}
