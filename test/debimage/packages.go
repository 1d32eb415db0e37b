package debimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// deb is a package as apt names it.
type deb struct{ url, file, sha256 string }

// closure asks apt what packages come with these on a machine that has none.
func closure(ctx context.Context, packages []string) ([]deb, error) {
	status, err := os.CreateTemp("", "margolite-empty-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(status.Name())
	if err := status.Close(); err != nil {
		return nil, err
	}
	args := []string{
		"--print-uris", "-qq", "--no-install-recommends",
		"-o", "Dir::State::status=" + status.Name(), "-o", "Acquire::ForceHash=SHA256", "install",
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(args, packages...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("apt-get: %w: %s", err, strings.TrimSpace(said.String()))
	}
	var list []deb
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line) // 'URL' file size SHA256:sum
		if len(fields) != 4 || !strings.HasPrefix(fields[3], "SHA256:") {
			return nil, fmt.Errorf("apt-get printed %q", line)
		}
		name, _, _ := strings.Cut(fields[1], "_")
		if slices.Contains(dropped, name) && !slices.Contains(packages, name) {
			continue
		}
		list = append(list, deb{strings.Trim(fields[0], "'"), path.Base(fields[1]), strings.TrimPrefix(fields[3], "SHA256:")})
	}
	return list, nil
}

func updateLists(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, "apt-get", "update", "-qq").CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get update: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// download gets the packages that are not there and gives their files.
func (c *Cache) download(ctx context.Context, list []deb) ([]string, error) {
	files := make([]string, len(list))
	problems := make([]error, len(list))
	places := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, d := range list {
		files[i] = filepath.Join(c.dir, "debs", d.file)
		wg.Go(func() {
			places <- struct{}{}
			problems[i] = d.download(ctx, files[i])
			<-places
		})
	}
	wg.Wait()
	return files, errors.Join(problems...)
}

func (d deb) download(ctx context.Context, file string) error {
	if data, err := os.ReadFile(file); err == nil && d.is(data) {
		return nil
	}
	data, err := d.get(ctx)
	if err == nil && !d.is(data) {
		err = errors.New("its content is not what apt expects")
	}
	if err != nil {
		return fmt.Errorf("cannot download %s: %w", d.url, err)
	}
	part, err := os.CreateTemp(filepath.Dir(file), ".part-")
	if err != nil {
		return err
	}
	_, err = part.Write(data)
	if err := errors.Join(err, part.Close()); err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	return os.Rename(part.Name(), file)
}

func (d deb) get(ctx context.Context) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	return io.ReadAll(answer.Body)
}

func (d deb) is(data []byte) bool {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]) == d.sha256
}
