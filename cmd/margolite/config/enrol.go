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

// Bounds of a directory with provisioning files: it may be on whatever somebody
// has plugged in.
const (
	maxEntries     = 256     // of the directory
	maxDocuments   = 16      // provisioning files in it
	maxBeside      = 16      // files that those name
	maxBesideBytes = 1 << 20 // of one of them
)

// An enrolment is what provisioning files make of a device that knows no WFM. It
// is a directory below state.dir: the provisioning files, and those that they
// name. It comes into being as a whole, by one rename, and that it is there is
// what says that nothing more is to be taken: whoever pulls the plug before has
// given nothing, whoever does it after has given all.
type enrolment struct {
	place string   // the directory, absolute
	names []string // of the files that provisioning files name
}

// enrolmentPlace is where the enrolment of this device is, or is going to be.
func (c *Config) enrolmentPlace() string { return filepath.Join(c.State.Dir, "enrolment") }

// Enrol takes over what lies in the first directory of provision.from that has
// provisioning files, for a device whose configuration, the file at path, names no
// WFM and that was not enrolled before. It returns that directory; "": there was
// nothing to do, or nothing to be found. From then on Load gives a configuration
// with a WFM.
//
// A provisioning file is called *.yaml and has the form of the configuration, with
// the sections device, wfm, poll and registries alone. Several are read in the
// order of their names. Files are named without a path, and lie beside it. What is
// wrong with any of it is an error, and nothing is taken then. Where it comes from
// nothing is changed.
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

// addEnrolment puts what the device was enrolled with on top of the configuration.
func (c *Config) addEnrolment(r *reader) error {
	dir := c.enrolmentPlace()
	s, err := openDirectory(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && s == nil:
		return nil
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return nil // enough for those who only look for the socket
	case err != nil:
		return fmt.Errorf("cannot read the enrolment of the device: %w", err)
	}
	defer s.root.Close()
	_, err = c.merge(r, s)
	return err
}

// enrolled are the sections that a provisioning file may have: who the device is,
// and who it listens to. What that one may do here stays with the configuration.
var enrolled = []string{"device", "wfm", "poll", "registries"}

// merge reads provisioning files on top of the configuration. The reader has the names
// of the files beside them then.
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

// openDirectory returns nil where the directory has none.
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

// read takes regular files alone: a link could lead to what lies on the device, and
// a pipe nowhere.
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

// keep writes the files to a directory that is there with all of them, on the
// medium, or not at all.
func keep(dir string, files []document) error {
	above, next := filepath.Dir(dir), dir+".new"
	if err := os.MkdirAll(above, 0o711); err != nil {
		return err
	}
	if err := os.RemoveAll(next); err != nil { // of one that was cut off
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
