package container

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v4"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/margolite/margolite/runtime/tree"
)

// cdiDirs hold the files of the Container Device Interface, later ones win:
// https://github.com/cncf-tags/container-device-interface, SPEC.md.
var cdiDirs = []string{"/etc/cdi", "/var/run/cdi"}

// Limits on CDI files, which programs of the device's maker write.
const (
	maxCDIFiles = 256
	maxCDIFile  = 1 << 20 // bytes
	maxCDINames = 20      // names in an error
)

type cdiDevice struct {
	file  *cdispecs.Spec
	edits *cdispecs.ContainerEdits
	path  string // of the file
	twice string // another file of the same directory that defines it too
}

type cdiRegistry struct {
	devices map[string]*cdiDevice // by vendor.com/class=name
	broken  []error               // ignored files
}

// readCDI reads all files in the directories. An unreadable file drops only its own devices.
func readCDI(dirs []string) cdiRegistry {
	r := cdiRegistry{devices: make(map[string]*cdiDevice)}
	files := 0
	for _, dir := range dirs {
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
			text, err := tree.ReadFile(path, maxCDIFile)
			var spec *cdispecs.Spec
			if err == nil {
				spec, err = parseCDI(text)
			}
			if err != nil {
				r.broken = append(r.broken, fmt.Errorf("%s: %w", path, err))
				continue
			}
			r.add(spec, path)
		}
	}
	return r
}

func (r *cdiRegistry) add(spec *cdispecs.Spec, path string) {
	for i := range spec.Devices {
		device := &cdiDevice{file: spec, edits: &spec.Devices[i].ContainerEdits, path: path}
		name := spec.Kind + "=" + spec.Devices[i].Name
		if other := r.devices[name]; other != nil && filepath.Dir(other.path) == filepath.Dir(path) {
			device.twice = other.path
		}
		r.devices[name] = device
	}
}

func (r *cdiRegistry) find(name string) (*cdiDevice, error) {
	device := r.devices[name]
	if device != nil && device.twice != "" {
		return nil, fmt.Errorf("device %s is in both %s and %s", name, device.twice, device.path)
	}
	if device != nil {
		return device, nil
	}
	there := slices.Sorted(maps.Keys(r.devices))
	list := strings.Join(there[:min(len(there), maxCDINames)], ", ")
	err := fmt.Errorf("device %.100s is not defined in %s; there are %d: %s", name, strings.Join(cdiDirs, " or "), len(there), cmp.Or(list, "none"))
	if len(r.broken) > 0 {
		err = fmt.Errorf("%w; unusable files: %w", err, errors.Join(r.broken...))
	}
	return nil, err
}

// parseCDI reads one JSON or YAML file and checks all of it: an incomplete device is worse
// than a missing one. The library's cache does not limit what it reads, and panics on null
// entries; its parser would link a second YAML library of 0.2 MB.
func parseCDI(text []byte) (*cdispecs.Spec, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var spec *cdispecs.Spec
	if err := decoder.Decode(&spec); err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, errors.New("is empty")
	}
	// Unknown fields are already errors, so any version of the file format will do.
	if !strings.HasPrefix(spec.Version, "0.") && !strings.HasPrefix(spec.Version, "1.") {
		return nil, fmt.Errorf("has cdiVersion %.20q, expected 0.x or 1.x", spec.Version)
	}
	vendor, class := parser.ParseQualifier(spec.Kind)
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
		return nil, fmt.Errorf("has kind %.80q, expected vendor.com/class: %w", spec.Kind, err)
	}
	if err := checkCDIEdits(&spec.ContainerEdits); err != nil {
		return nil, err
	}
	names := make(map[string]bool, len(spec.Devices))
	for i := range spec.Devices {
		d := &spec.Devices[i]
		if err := parser.ValidateDeviceName(d.Name); err != nil || names[d.Name] {
			return nil, fmt.Errorf("has a device with an invalid or duplicate name: %.80q", d.Name)
		}
		names[d.Name] = true
		if err := checkCDIEdits(&d.ContainerEdits); err != nil {
			return nil, fmt.Errorf("device %s: %w", d.Name, err)
		}
	}
	return spec, nil
}

// checkCDIEdits refuses early what runc before 1.3 does not support.
func checkCDIEdits(e *cdispecs.ContainerEdits) error {
	switch {
	case e.IntelRdt != nil || len(e.NetDevices) > 0:
		return errors.New("has intelRdt or netDevices, which are not supported")
	case slices.Contains(e.DeviceNodes, nil) || slices.Contains(e.Mounts, nil) || slices.Contains(e.Hooks, nil):
		return errors.New("has a null entry")
	}
	if err := (&cdi.ContainerEdits{ContainerEdits: e}).Validate(); err != nil {
		return err
	}
	for _, n := range e.DeviceNodes {
		if !filepath.IsAbs(n.Path) || n.HostPath != "" && !filepath.IsAbs(n.HostPath) {
			return fmt.Errorf("has a malformed device node %.80q", n.Path)
		}
	}
	for _, m := range e.Mounts {
		m.ContainerPath = filepath.Clean(m.ContainerPath)
		if err := checkTarget(m.ContainerPath); err != nil {
			return err
		}
	}
	for _, h := range e.Hooks {
		if !filepath.IsAbs(h.Path) || h.Timeout != nil && *h.Timeout < 1 {
			return fmt.Errorf("has a malformed hook %.40q", h.HookName)
		}
	}
	return nil
}

// addCDI applies the edits of the named devices, and those common to a file once per file.
func addCDI(spec *specs.Spec, names, dirs []string) error {
	if len(names) == 0 {
		return nil
	}
	registry := readCDI(dirs)
	var done []*cdispecs.Spec
	for _, name := range names {
		device, err := registry.find(name)
		if err != nil {
			return err
		}
		edits := []*cdispecs.ContainerEdits{device.edits}
		if !slices.Contains(done, device.file) {
			done = append(done, device.file)
			edits = slices.Insert(edits, 0, &device.file.ContainerEdits)
		}
		for _, e := range edits {
			if err := applyCDI(e, spec); err != nil {
				return fmt.Errorf("device %s in %s: %w", name, device.path, err)
			}
		}
	}
	// For a rule without access the library writes the permissions "none", which runc refuses.
	spec.Linux.Resources.Devices = slices.DeleteFunc(spec.Linux.Resources.Devices, func(rule specs.LinuxDeviceCgroup) bool {
		return rule.Allow && rule.Access == ""
	})
	return nil
}

func applyCDI(edits *cdispecs.ContainerEdits, spec *specs.Spec) error {
	for _, n := range edits.DeviceNodes {
		if n.Type == "u" {
			n.Type = "c" // the same to Linux, but the library makes a rule only for c
		}
		// udev's device names are links, which the library does not follow.
		if real, err := filepath.EvalSymlinks(cmp.Or(n.HostPath, n.Path)); err == nil {
			n.HostPath = real
		}
	}
	return (&cdi.ContainerEdits{ContainerEdits: edits}).Apply(spec)
}
