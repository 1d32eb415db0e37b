package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/tree"
)

// fileName does not use the name in the Compose file, which may be long or used twice.
func fileName(n int, f compose.File) string {
	return kindOf(f) + "-" + strconv.Itoa(n)
}

func kindOf(f compose.File) string {
	if f.Secret {
		return "secret"
	}
	return "config"
}

func filesOf(s *compose.Service) []File {
	var files []File
	for n, f := range s.Files {
		files = append(files, File{Name: fileName(n, f), UID: f.UID, GID: f.GID, Mode: f.Mode & 0o7777})
	}
	return files
}

// keepFiles writes to the medium the configs and secrets of a container that has no record yet.
func (p *paths) keepFiles(project, id string, files []compose.File) error {
	if len(files) == 0 {
		return nil
	}
	dir := p.keptFiles(project, id)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil { // a killed Create may have left one
		return fmt.Errorf("cannot store configs and secrets: %w", err)
	}
	for n, f := range files {
		if err := writeFile(filepath.Join(dir, fileName(n, f)), f.Content); err != nil {
			return fmt.Errorf("cannot store %s %s: %w", kindOf(f), f.Name, err)
		}
	}
	for _, dir := range []string{dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir)), p.o.StateDir} {
		if err := tree.Sync(dir); err != nil {
			return fmt.Errorf("cannot store configs and secrets: %w", err)
		}
	}
	return nil
}

// placeFiles prepares the configs and secrets of a container for its start: it sets owner and
// mode, and makes the path that they are mounted from, which a reboot clears, a link to
// where they are kept. Replicas take no memory for copies.
func (p *paths) placeFiles(id string, l Labels) error {
	if len(l.Files) == 0 {
		return nil
	}
	kept, placed := p.keptFiles(l.Project, id), p.placedFiles(id)
	for _, f := range l.Files {
		if err := giveTo(filepath.Join(kept, f.Name), f); err != nil {
			return fmt.Errorf("cannot place configs and secrets: %w", err)
		}
	}
	// There may be a link to another place.
	if err := errors.Join(os.RemoveAll(placed), os.MkdirAll(filepath.Dir(placed), 0o700), os.Symlink(kept, placed)); err != nil {
		return fmt.Errorf("cannot place configs and secrets: %w", err)
	}
	return nil
}

// giveTo sets owner and mode of a file only if they differ: a start seldom writes to flash.
func giveTo(path string, f File) error {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return err
	}
	if stat.Uid == f.UID && stat.Gid == f.GID && stat.Mode&0o7777 == f.Mode {
		return nil
	}
	if err := unix.Lchown(path, int(f.UID), int(f.GID)); err != nil {
		return err
	}
	return unix.Chmod(path, f.Mode) // after the owner, whose change clears bits
}

// writeFile writes a new file that only root can read, to the medium.
func writeFile(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (p *paths) removeFiles(id string) error {
	kept, err := filepath.Glob(p.keptFiles("*", id))
	if err != nil {
		return err
	}
	for _, dir := range append(kept, p.placedFiles(id)) {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	for _, dir := range kept {
		_ = os.Remove(filepath.Dir(dir)) // fails unless it was the project's last
	}
	return err
}

const (
	// CertificateAt is where containers find the collector's certificate.
	CertificateAt = "/etc/margolite/collector.pem"

	certificateVariable = "OTEL_EXPORTER_OTLP_CERTIFICATE"
	maxCertificate      = 64 << 10 // bytes
)

// certified adds the collector's certificate to a service's files, if there is one (OBS-08). It
// is not part of the configuration's hash, so no container is recreated for it.
func (o *Options) certified(s *compose.Service) *compose.Service {
	if o.Certificate == "" || mountedAt(s, CertificateAt) {
		return s
	}
	content, err := tree.ReadFile(o.Certificate, maxCertificate)
	if err != nil {
		o.Logger.Warn("a container does not get the collector's certificate", "service", s.Name, "file", o.Certificate, "error", err)
		return s
	}
	with := *s
	with.Files = append(slices.Clip(s.Files), compose.File{Name: "collector", Target: CertificateAt, Mode: 0o444, Content: content})
	return &with
}

func (o *Options) environment(s *compose.Service) []string {
	if o.Certificate == "" || !mountedAt(s, CertificateAt) {
		return o.Environment
	}
	return append(slices.Clip(o.Environment), certificateVariable+"="+CertificateAt)
}
