package container

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
)

const (
	maxDevices     = 4096 // device nodes of one container
	maxDeviceDepth = 8    // of directories of device nodes
)

// elsewhere lists file systems in /dev, which a container has anyway.
var elsewhere = []string{"/dev/pts", "/dev/shm", "/dev/fd", "/dev/mqueue", "/dev/console", "/dev/.lxc", "/dev/.lxd-mounts", "/dev/.udev"}

// deviceRules allow the devices that every container has, as in Docker.
var deviceRules = []string{
	"c 1:3 rwm",   // null
	"c 1:5 rwm",   // zero
	"c 1:7 rwm",   // full
	"c 1:8 rwm",   // random
	"c 1:9 rwm",   // urandom
	"c 5:0 rwm",   // tty
	"c 5:1 rwm",   // console
	"c 5:2 rwm",   // ptmx
	"c 136:* rwm", // pts/*
}

// Devices are the devices of the machine that a container has. They are looked up at each
// start: numbers and links change while the device is off, and hardware may be added.
type Devices struct {
	All   bool             `json:"all,omitempty"` // privileged
	Nodes []compose.Device `json:"nodes,omitempty"`
	CDI   []string         `json:"cdi,omitempty"` // vendor.com/class=name
}

func devicesOf(s *compose.Service) *Devices {
	if !s.Privileged && len(s.Devices) == 0 && len(s.CDI) == 0 {
		return nil
	}
	return &Devices{All: s.Privileged, Nodes: s.Devices, CDI: s.CDI}
}

// rules returns which devices a container may open or make, beside its nodes.
func rules(s *compose.Service) []specs.LinuxDeviceCgroup {
	if s.Privileged {
		return []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}
	list := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, text := range slices.Concat(deviceRules, s.DeviceRules) {
		if rule, ok := compose.ParseDeviceRule(text); ok { // checked by Load
			list = append(list, rule)
		}
	}
	return list
}

func (d *Devices) addTo(spec *specs.Spec) error {
	if d.All {
		nodes, err := nodesBelow("/dev", "/dev", elsewhere)
		if err != nil {
			return err
		}
		for _, node := range nodes {
			putNode(spec, node)
		}
	}
	for _, wanted := range d.Nodes {
		target := path.Clean(wanted.Target)
		if !path.IsAbs(wanted.Target) || target == "/" {
			return fmt.Errorf("devices: %.80q is not a path for a device", wanted.Target)
		}
		nodes, err := nodesOf(wanted, target)
		if err != nil {
			return fmt.Errorf("devices: %w", err)
		}
		for _, node := range nodes {
			putNode(spec, node)
			if !d.All {
				spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
					Allow: true, Type: node.Type, Major: &node.Major, Minor: &node.Minor, Access: cmp.Or(wanted.Permissions, "rwm"),
				})
			}
		}
	}
	if len(spec.Linux.Devices) > maxDevices {
		return fmt.Errorf("devices: there are %d; a container can have %d", len(spec.Linux.Devices), maxDevices)
	}
	return nil
}

func nodesOf(d compose.Device, target string) ([]specs.LinuxDevice, error) {
	if err := checkLink(d.Path, d.Real); err != nil {
		return nil, err
	}
	found, err := filepath.EvalSymlinks(d.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot find device %s: %w", d.Path, err)
	}
	nodes, err := nodesBelow(found, target, nil)
	if err == nil && len(nodes) == 0 {
		err = fmt.Errorf("cannot use %s: it is not a device node, nor a directory that contains devices", d.Path)
	}
	return nodes, err
}

func nodeAt(path string) (specs.LinuxDevice, error) {
	var at unix.Stat_t
	if err := unix.Stat(path, &at); err != nil {
		return specs.LinuxDevice{}, fmt.Errorf("cannot find device %s: %w", path, err)
	}
	mode := os.FileMode(at.Mode & 0o777)
	node := specs.LinuxDevice{Path: path, UID: &at.Uid, GID: &at.Gid, FileMode: &mode}
	switch at.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		node.Type = "b"
	case unix.S_IFCHR:
		node.Type = "c"
	default:
		return specs.LinuxDevice{}, fmt.Errorf("cannot use %s: it is not a device node", path)
	}
	number := uint64(at.Rdev) // its width depends on the platform
	node.Major, node.Minor = int64(unix.Major(number)), int64(unix.Minor(number))
	return node, nil
}

// nodesBelow returns device nodes in dir, or dir itself, with target in place of dir.
func nodesBelow(dir, target string, skipped []string) ([]specs.LinuxDevice, error) {
	var nodes []specs.LinuxDevice
	err := filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case slices.Contains(skipped, at):
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case errors.Is(err, fs.ErrNotExist):
			return nil // unplugged in the meantime
		case err != nil:
			return err
		case entry.IsDir() && strings.Count(at[len(dir):], "/") > maxDeviceDepth:
			return fs.SkipDir
		case entry.Type()&fs.ModeDevice == 0:
			return nil
		}
		node, err := nodeAt(at)
		if err != nil {
			return nil // unplugged in the meantime
		}
		if len(nodes) >= maxDevices {
			return fmt.Errorf("there are more than %d", maxDevices)
		}
		node.Path = target + at[len(dir):]
		nodes = append(nodes, node)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list devices in %s: %w", dir, err)
	}
	return nodes, nil
}

func putNode(spec *specs.Spec, node specs.LinuxDevice) {
	spec.Linux.Devices = slices.DeleteFunc(spec.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == node.Path })
	spec.Linux.Devices = append(spec.Linux.Devices, node)
}
