package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/store"
)

// Bounds of a directory with provisioning files, which may be on any plugged-in medium.
const (
	maxEntries     = 256     // of the directory
	maxDocuments   = 16      // provisioning files in it
	maxBeside      = 16      // files named by them
	maxBesideBytes = 1 << 20 // of one of them
)

// An enrolment is the result of provisioning files on a device that knows no WFM: a directory below
// state.dir with those files and the files that they name. It is created atomically by one rename,
// and its existence ends provisioning: pulling the plug earlier leaves nothing, later everything.
type enrolment struct {
	place string   // the directory, absolute
	names []string // of the files that provisioning files name
}

func (c *Config) enrolmentPlace() string { return filepath.Join(c.State.Dir, "enrolment") }

// Enrol copies the first directory of provision.from with provisioning files, if the configuration
// at path names no WFM and the device is not enrolled yet. It returns that directory; "": nothing
// to do or nothing found. From then on Load returns a configuration with a WFM.
//
// A provisioning file is named *.yaml and has the form of the configuration, with only the sections
// device, wfm, poll and registries. Several are read in name order. They name files without a path,
// in the same directory. Any mistake is an error, and nothing is copied then. The source is never
// changed.
func Enrol(path string) (from string, err error) {
	c, r, err := load(path)
	if err != nil || c.WFM.URL != "" {
		return "", err
	}
	if _, err := os.Lstat(c.enrolmentPlace()); !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, dir := range c.Provision.From {
		given, err := openDirectory(dir)
		if errors.Is(err, fs.ErrNotExist) || err == nil && given == nil {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("cannot look for provisioning files: %w", err)
		}
		defer given.root.Close()
		if err := c.enrol(r, given); err != nil {
			return "", fmt.Errorf("cannot use the provisioning files in %s: %w", dir, err)
		}
		return dir, nil
	}
	return "", nil
}

func (c *Config) enrol(r *reader, s *directory) error {
	files, err := c.merge(r, s)
	if err != nil {
		return err
	}
	if c.WFM.URL == "" {
		return &Error{File: s.path(files[len(files)-1].name), Key: "wfm.url", Problem: "required in one of the provisioning files"}
	}
	names := r.enrols.names
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxBeside {
		return fmt.Errorf("they name %[2]d other files; the limit is %[1]d", maxBeside, len(names))
	}
	for _, name := range names {
		data, err := s.read(name, maxBesideBytes)
		if err != nil {
			return err
		}
		files = append(files, document{name, data})
	}
	return keep(c.enrolmentPlace(), files)
}

func (c *Config) addEnrolment(r *reader) error {
	dir := c.enrolmentPlace()
	s, err := openDirectory(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && s == nil:
		return nil
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return nil // enough to find the socket
	case err != nil:
		return fmt.Errorf("cannot read the enrolment of the device: %w", err)
	}
	defer s.root.Close()
	_, err = c.merge(r, s)
	return err
}

// enrolled are the sections allowed in a provisioning file: the device's identity and whom it
// obeys. What the WFM may do here is left to the configuration.
var enrolled = []string{"device", "wfm", "poll", "registries"}

// merge applies provisioning files on top. The reader then has the files that they name.
func (c *Config) merge(r *reader, s *directory) (all []document, err error) {
	r.enrols = &enrolment{place: c.enrolmentPlace()}
	known := r.fields(reflect.ValueOf(c).Elem())
	maps.DeleteFunc(known, func(key string, _ func(*yaml.Node, string)) bool { return !slices.Contains(enrolled, key) })
	for _, name := range s.names {
		data, err := s.read(name, maxSize)
		if err == nil {
			r.file = s.path(name)
			err = r.read(data, known)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, document{name, data})
	}
	return all, c.settle(r)
}

type document struct {
	name string
	data []byte
}

type directory struct {
	root  *os.Root
	names []string // of the provisioning files, sorted
}

// openDirectory returns nil if the directory has no provisioning files.
func openDirectory(dir string) (*directory, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &directory{root: root}
	if err := s.find(); err != nil || len(s.names) == 0 {
		root.Close()
		return nil, err
	}
	return s, nil
}

func (s *directory) find() error {
	dir, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".yaml") && e.Name()[0] != '.' {
			s.names = append(s.names, e.Name())
		}
	}
	slices.Sort(s.names)
	switch {
	case len(s.names) > 0 && len(entries) > maxEntries:
		return fmt.Errorf("%s has more than %d entries", s.root.Name(), maxEntries)
	case len(s.names) > maxDocuments:
		return fmt.Errorf("%s has %d provisioning files; the limit is %d", s.root.Name(), len(s.names), maxDocuments)
	}
	return nil
}

func (s *directory) path(name string) string { return filepath.Join(s.root.Name(), name) }

// read accepts only regular files: a link could lead to the device's own, and a pipe block.
func (s *directory) read(name string, most int64) ([]byte, error) {
	path := s.path(name)
	info, err := s.root.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		return nil, &Error{File: path, Problem: "not a regular file"}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	f, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		return nil, fmt.Errorf("cannot read %s: it was replaced at the same time", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if int64(len(data)) > most {
		return nil, &Error{File: path, Problem: fmt.Sprintf("the file has more than %d bytes", most)}
	}
	return data, nil
}

// keep writes the files to a directory atomically and durably.
func keep(dir string, files []document) error {
	above, next := filepath.Dir(dir), dir+".new"
	if err := os.MkdirAll(above, 0o711); err != nil {
		return err
	}
	if err := os.RemoveAll(next); err != nil { // left by an interrupted attempt
		return err
	}
	if err := os.Mkdir(next, 0o700); err != nil {
		return err
	}
	for _, file := range files {
		if err := store.ReplaceFile(filepath.Join(next, file.name), 0o600, bytes.NewReader(file.data)); err != nil {
			return err
		}
	}
	if err := os.Rename(next, dir); err != nil {
		return err
	}
	return store.Sync(above)
}
