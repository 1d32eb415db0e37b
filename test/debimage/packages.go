package debimage

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// dropped are packages that others depend on for what is not done here: to be
// installed, to be started by an init system, or to compile at run time.
var dropped = []string{
	"adduser", "debconf", "dmsetup", "dpkg", "gcc-12-base", "init-system-helpers",
	"iproute2", "libcap2-bin", "libdb5.3", "libelf1", "libbpf1", "libllvm14",
	"libpython3.11", "libpython3.11-minimal", "libpython3.11-stdlib", "libperl5.36",
	"libsemanage-common", "libsemanage2", "libsepol2", "libz3-4", "locales", "libc-l10n",
	"lsb-base", "media-types", "mount", "openssl", "passwd", "perl", "perl-base",
	"perl-modules-5.36", "postgresql-client-common", "postgresql-common", "ssl-cert",
	"systemd", "sysvinit-utils", "tar", "ucf", "usrmerge",
}

// closure asks apt what packages come with these on a machine that has none: each with
// its version, as name=version.
func closure(ctx context.Context, packages []string) ([]string, error) {
	args := []string{"install", "--simulate", "-qq", "--no-install-recommends", "-o", "Dir::State::status=/dev/null"}
	out, err := apt(ctx, "", append(args, packages...)...)
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line) // Inst name (version origin [architecture])
		if len(fields) < 3 || fields[0] != "Inst" {
			continue
		}
		if name := fields[1]; !slices.Contains(dropped, name) || slices.Contains(packages, name) {
			list = append(list, name+"="+strings.TrimPrefix(fields[2], "("))
		}
	}
	return list, nil
}

// download has apt get packages, which it checks, into a directory, and gives their
// files. Those that are there stay.
func download(ctx context.Context, dir string, list []string) ([]string, error) {
	if _, err := apt(ctx, dir, append([]string{"download", "-qq", "-o", "APT::Sandbox::User=root"}, list...)...); err != nil {
		return nil, err
	}
	var files []string
	for _, p := range list {
		name, version, _ := strings.Cut(p, "=")
		found, err := filepath.Glob(filepath.Join(dir, name+"_"+strings.ReplaceAll(version, ":", "%3a")+"_*.deb"))
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("apt-get brought %q of %s, %v", found, p, err)
		}
		files = append(files, found[0])
	}
	return files, nil
}

// apt runs apt-get in a directory and gives what it printed.
func apt(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("apt-get %s: %w: %s", args[0], err, bytes.TrimSpace(said.Bytes()))
	}
	return string(out), nil
}
