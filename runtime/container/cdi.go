package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// cdiDirs are where the Container Device Interface has its files, later ones
// win: https://github.com/cncf-tags/container-device-interface, SPEC.md.
var cdiDirs = []string{"/etc/cdi", "/var/run/cdi"}

// Bounds of CDI files. They are the device maker's, but programs write them.
const (
	maxCDIFiles = 256
	maxCDIFile  = 1 << 20 // bytes
	maxCDINames = 20      // that an error lists
)

// cdiSpec is one file: the devices of one vendor and class.
type cdiSpec struct {
	Version     string            `yaml:"cdiVersion"`
	Kind        string            `yaml:"kind"` // vendor.com/class
	Annotations map[string]string `yaml:"annotations"`
	Devices     []cdiDevice       `yaml:"devices"`
	Edits       cdiEdits          `yaml:"containerEdits"` // for a container with any of the devices
}

type cdiDevice struct {
	Name        string            `yaml:"name"`
	Annotations map[string]string `yaml:"annotations"`
	Edits       cdiEdits          `yaml:"containerEdits"`
}

// cdiEdits are what a container gets with a device. Keys that are not here make
// a file invalid: a device with half of what it needs is worse than none.
type cdiEdits struct {
	Env            []string    `yaml:"env"`
	Nodes          []cdiNode   `yaml:"deviceNodes"`
	Mounts         []cdiMount  `yaml:"mounts"`
	Hooks          []cdiHook   `yaml:"hooks"`
	AdditionalGIDs []uint32    `yaml:"additionalGids"`
	IntelRdt       cdiRefused  `yaml:"intelRdt"`
	NetDevices     *cdiRefused `yaml:"netDevices"`
}

type cdiNode struct {
	Path        string  `yaml:"path"`
	HostPath    string  `yaml:"hostPath"` // empty: Path
	Type        string  `yaml:"type"`     // b, c, u, p; empty: that of HostPath
	Major       int64   `yaml:"major"`
	Minor       int64   `yaml:"minor"`
	Mode        *uint32 `yaml:"fileMode"`
	Permissions string  `yaml:"permissions"`
	UID         *uint32 `yaml:"uid"`
	GID         *uint32 `yaml:"gid"`
}

type cdiMount struct {
	HostPath      string   `yaml:"hostPath"`
	ContainerPath string   `yaml:"containerPath"`
	Options       []string `yaml:"options"`
	Type          string   `yaml:"type"`
}

type cdiHook struct {
	Name    string   `yaml:"hookName"`
	Path    string   `yaml:"path"`
	Args    []string `yaml:"args"`
	Env     []string `yaml:"env"`
	Timeout *int     `yaml:"timeout"` // seconds
}

// cdiRefused is an edit that runc before 1.3 and this runtime do not make.
type cdiRefused struct{}

func (*cdiRefused) UnmarshalYAML(*yaml.Node) error {
	return errors.New("has intelRdt or netDevices, which are not supported")
}

// cdiEntry is a device and the file that has it.
type cdiEntry struct {
	file   *cdiSpec
	device *cdiDevice
	dir    int    // place of its directory
	twice  string // another file of the same directory that has the device too
	path   string
}

// cdiRegistry is what the files of a device say.
type cdiRegistry struct {
	devices map[string]*cdiEntry // by vendor.com/class=name
	broken  []error              // files that are left out
}

// readCDI reads all files in the directories. A file that cannot be read leaves
// out its own devices alone.
func readCDI(dirs []string) cdiRegistry {
	r := cdiRegistry{devices: make(map[string]*cdiEntry)}
	files := 0
	for n, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			r.broken = append(r.broken, err)
			continue
		}
		for _, entry := range entries {
			if !slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(entry.Name())) {
				continue
			}
			if files++; files > maxCDIFiles {
				r.broken = append(r.broken, fmt.Errorf("there are more than %d files", maxCDIFiles))
				return r
			}
			path := filepath.Join(dir, entry.Name())
			spec, err := readCDIFile(path)
			if err != nil {
				r.broken = append(r.broken, fmt.Errorf("%s: %w", path, err))
				continue
			}
			r.add(spec, n, path)
		}
	}
	return r
}

func (r *cdiRegistry) add(spec *cdiSpec, dir int, path string) {
	for i := range spec.Devices {
		entry := &cdiEntry{file: spec, device: &spec.Devices[i], dir: dir, path: path}
		name := spec.Kind + "=" + entry.device.Name
		if other := r.devices[name]; other != nil && other.dir == dir {
			entry.twice = other.path
		}
		r.devices[name] = entry
	}
}

// find returns a device by its full name.
func (r *cdiRegistry) find(name string) (*cdiEntry, error) {
	entry := r.devices[name]
	if entry != nil && entry.twice != "" {
		return nil, fmt.Errorf("device %s is in both %s and %s", name, entry.twice, entry.path)
	}
	if entry != nil {
		return entry, nil
	}
	there := slices.Sorted(maps.Keys(r.devices))
	list := "none"
	switch {
	case len(there) > maxCDINames:
		list = fmt.Sprintf("%s and %d more", strings.Join(there[:maxCDINames], ", "), len(there)-maxCDINames)
	case len(there) > 0:
		list = strings.Join(there, ", ")
	}
	err := fmt.Errorf("device %.100s is not described in %s; there are: %s", name, strings.Join(cdiDirs, " or "), list)
	if len(r.broken) > 0 {
		err = fmt.Errorf("%w; files that cannot be used: %w", err, errors.Join(r.broken...))
	}
	return nil, err
}

func readCDIFile(path string) (*cdiSpec, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCDIFile+1))
	if err != nil {
		return nil, err
	}
	return parseCDI(text)
}

// parseCDI reads one file, JSON or YAML, and checks all of it.
func parseCDI(text []byte) (*cdiSpec, error) {
	if len(text) > maxCDIFile {
		return nil, fmt.Errorf("has more than %d bytes", maxCDIFile)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var spec cdiSpec
	if err := decoder.Decode(&spec); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(spec.Version, "0.") && !strings.HasPrefix(spec.Version, "1.") {
		return nil, fmt.Errorf("has cdiVersion %.20q, want 0.x or 1.x", spec.Version)
	}
	vendor, class, _ := strings.Cut(spec.Kind, "/")
	if !ValidName(vendor) || !ValidName(class) {
		return nil, fmt.Errorf("has kind %.80q, want vendor.com/class", spec.Kind)
	}
	if err := spec.Edits.check(); err != nil {
		return nil, err
	}
	names := make(map[string]bool, len(spec.Devices))
	for _, d := range spec.Devices {
		if d.Name == "" || len(d.Name) > maxName || strings.ContainsAny(d.Name, " \n=/") || names[d.Name] {
			return nil, fmt.Errorf("has a device with a name that is invalid or there twice: %.80q", d.Name)
		}
		names[d.Name] = true
		if err := d.Edits.check(); err != nil {
			return nil, fmt.Errorf("device %s: %w", d.Name, err)
		}
	}
	return &spec, nil
}

func (e cdiEdits) check() error {
	for _, entry := range e.Env {
		if strings.IndexByte(entry, '=') < 1 || strings.ContainsRune(entry, 0) {
			return fmt.Errorf("has %.80q for an environment variable", entry)
		}
	}
	for _, n := range e.Nodes {
		if !filepath.IsAbs(n.Path) || !slices.Contains([]string{"", "b", "c", "u", "p"}, n.Type) ||
			n.HostPath != "" && !filepath.IsAbs(n.HostPath) ||
			n.Permissions != "" && n.Permissions != cdiNoAccess && !isAccess(n.Permissions) {
			return fmt.Errorf("has a malformed device node %.80q", n.Path)
		}
	}
	for _, m := range e.Mounts {
		if m.HostPath == "" || checkTarget(filepath.Clean(m.ContainerPath)) != nil {
			return fmt.Errorf("has a malformed mount at %.80q", m.ContainerPath)
		}
	}
	for _, h := range e.Hooks {
		if hookList(nil, h.Name) == nil || !filepath.IsAbs(h.Path) || h.Timeout != nil && *h.Timeout < 1 {
			return fmt.Errorf("has a malformed hook %.40q", h.Name)
		}
	}
	return nil
}
