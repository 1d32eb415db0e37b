// Package buildroot_test runs the commands of the package as Buildroot would, with
// a stand-in for its infrastructure and for the compiler.
package buildroot_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func TestThePackageInstallsWhatItsContainerdNeeds(t *testing.T) {
	here := expect.Value(filepath.Abs("."))(t)
	common := []string{"etc/margolite/config.yaml", "usr/bin/margolite", "usr/libexec/margolite/margolite-init"}
	for name, c := range map[string]struct {
		ofSystem, init string // containerd
		installed      []string
		containerd     string
	}{
		"containerd inside, systemd":     {"", "SYSTEMD", []string{"usr/lib/systemd/system/margolite.service", "usr/libexec/margolite/containerd-shim-runc-v2"}, "embedded"},
		"containerd inside, sysv":        {"", "SYSV", []string{"etc/init.d/S95margolite", "usr/libexec/margolite/containerd-shim-runc-v2"}, "embedded"},
		"containerd of the system, sysv": {"y", "SYSV", []string{"etc/init.d/S95margolite"}, "/run/containerd/containerd.sock"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			sources, target, log := filepath.Join(dir, "sources"), filepath.Join(dir, "target"), filepath.Join(dir, "log")
			for _, file := range []string{"packaging/config.yaml", "Makefile"} {
				data, err := os.ReadFile(filepath.Join("../..", file))
				if err == nil {
					err = os.MkdirAll(filepath.Dir(filepath.Join(sources, file)), 0o755)
				}
				if err == nil {
					err = os.WriteFile(filepath.Join(sources, file), data, 0o600)
				}
				expect.Check(t, err)
			}
			cmd := exec.Command("make", "-s", "-f", filepath.Join(here, "testdata/infra.mk"), filepath.Join(sources, ".built"),
				"SOURCES="+sources, "TARGET_DIR="+target, "PACKAGE="+filepath.Join(here, "package/margolite"), "INIT="+c.init,
				"BR2_PACKAGE_MARGOLITE_CONTAINERD="+c.ofSystem, "GO_BIN="+filepath.Join(here, "testdata/go"), "HOST_GO_TARGET_ENV=GOARCH=arm64")
			cmd.Env = append(os.Environ(), "GO_LOG="+log, "MAKEFLAGS=")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var got []string
			err := filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					got = append(got, strings.TrimPrefix(path, target+"/"))
				}
				return err
			})
			want := slices.Sorted(slices.Values(append(slices.Clone(common), c.installed...)))
			if slices.Sort(got); err != nil || !slices.Equal(got, want) {
				t.Errorf("installed are %v, want %v (%v)", got, want, err)
			}
			if info, err := os.Stat(filepath.Join(target, "etc/margolite/provision.d")); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("provision.d: %v %v", info, err)
			}
			config, err := os.ReadFile(filepath.Join(target, "etc/margolite/config.yaml"))
			if err != nil || !strings.Contains(string(config), "\n  containerd: "+c.containerd+"\n") {
				t.Errorf("the configuration names another containerd than %s (%v)", c.containerd, err)
			}
			asked := expect.Value(os.ReadFile(log))(t)
			for program, tags := range map[string]string{
				"margolite":               " -tags grpcnotrace,osusergo,netgo,no_rdt ",
				"containerd-shim-runc-v2": " -tags no_grpc,osusergo,netgo ",
				"margolite-init":          " ",
			} {
				if line := lineOf(string(asked), " ./cmd/"+program); !strings.HasPrefix(line, "arm640 build ") || !strings.Contains(line, tags) || !strings.Contains(line, "build.version=0.1.0 ") {
					t.Errorf("%s was built with %q, want%s", program, line, tags)
				}
			}
			// What inlining costs is left out here as everywhere.
			if line := lineOf(string(asked), " ./cmd/margolite"); !strings.Contains(line, " -gcflags=all=-l ") {
				t.Errorf("the agent was built with %q", line)
			}
		})
	}
}

func lineOf(text, suffix string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasSuffix(line, suffix) {
			return line
		}
	}
	return ""
}
