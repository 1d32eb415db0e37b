package container

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// cdiNoAccess are the permissions of a device node that nobody may open.
const cdiNoAccess = "none"

// addCDI makes the edits of the devices with these names, and once for each
// file those for all of its devices.
func addCDI(spec *specs.Spec, names, dirs []string) error {
	if len(names) == 0 {
		return nil
	}
	registry := readCDI(dirs)
	var done []*cdiSpec
	for _, name := range names {
		entry, err := registry.find(name)
		if err != nil {
			return err
		}
		if !slices.Contains(done, entry.file) {
			done = append(done, entry.file)
			if err := entry.file.Edits.apply(spec); err != nil {
				return fmt.Errorf("device %s: %w", name, err)
			}
		}
		if err := entry.device.Edits.apply(spec); err != nil {
			return fmt.Errorf("device %s: %w", name, err)
		}
	}
	sortMounts(spec.Mounts)
	return nil
}

func (e cdiEdits) apply(spec *specs.Spec) error {
	for _, entry := range e.Env {
		spec.Process.Env = setEnv(spec.Process.Env, entry)
	}
	for _, n := range e.Nodes {
		if err := n.apply(spec); err != nil {
			return err
		}
	}
	for _, m := range e.Mounts {
		target := filepath.Clean(m.ContainerPath)
		spec.Mounts = slices.DeleteFunc(spec.Mounts, func(other specs.Mount) bool { return other.Destination == target })
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: target, Type: m.Type, Source: m.HostPath, Options: m.Options})
	}
	for _, h := range e.Hooks {
		if spec.Hooks == nil {
			spec.Hooks = &specs.Hooks{}
		}
		list := hookList(spec.Hooks, h.Name)
		*list = append(*list, specs.Hook{Path: h.Path, Args: h.Args, Env: h.Env, Timeout: h.Timeout})
	}
	for _, gid := range e.AdditionalGIDs {
		if gid != 0 && !slices.Contains(spec.Process.User.AdditionalGids, gid) {
			spec.Process.User.AdditionalGids = append(slices.Clone(spec.Process.User.AdditionalGids), gid)
		}
	}
	return nil
}

// apply adds the node; what the file does not say is as on the device, but the
// owner is the user of the container.
func (n cdiNode) apply(spec *specs.Spec) error {
	node := specs.LinuxDevice{Path: n.Path, Type: n.Type, Major: n.Major, Minor: n.Minor}
	if n.Type == "u" {
		node.Type = "c" // the same to Linux
	}
	if node.Type != "p" && (node.Type == "" || n.Major == 0) {
		found, err := nodeAt(cmp.Or(n.HostPath, n.Path))
		if err != nil {
			return err
		}
		if node.Type != "" && node.Type != found.Type {
			return fmt.Errorf("%s is a device of type %s, not %s", cmp.Or(n.HostPath, n.Path), found.Type, node.Type)
		}
		node.Type, node.Major, node.Minor, node.FileMode = found.Type, found.Major, found.Minor, found.FileMode
	}
	if n.Mode != nil {
		mode := os.FileMode(*n.Mode).Perm()
		node.FileMode = &mode
	}
	owner := spec.Process.User
	if node.UID = n.UID; node.UID == nil && owner.UID != 0 {
		node.UID = &owner.UID
	}
	if node.GID = n.GID; node.GID == nil && owner.GID != 0 {
		node.GID = &owner.GID
	}
	putNode(spec, node)
	if node.Type != "p" && n.Permissions != cdiNoAccess {
		allow(spec, node, n.Permissions)
	}
	return nil
}

// hookList is the list that a hook belongs to; nil when there is none of that name.
func hookList(hooks *specs.Hooks, name string) *[]specs.Hook {
	if hooks == nil {
		hooks = &specs.Hooks{}
	}
	switch name {
	case "prestart":
		//lint:ignore SA1019 files of older tools have it
		return &hooks.Prestart
	case "createRuntime":
		return &hooks.CreateRuntime
	case "createContainer":
		return &hooks.CreateContainer
	case "startContainer":
		return &hooks.StartContainer
	case "poststart":
		return &hooks.Poststart
	case "poststop":
		return &hooks.Poststop
	default:
		return nil
	}
}

// setEnv adds an entry to an environment, in place of one with its name.
func setEnv(env []string, entry string) []string {
	name, _, _ := strings.Cut(entry, "=")
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	if i < 0 {
		return append(env, entry)
	}
	env = slices.Clone(env)
	env[i] = entry
	return env
}

// sortMounts puts parents before children. It is not slices.SortStableFunc, which
// the compiler would write out anew for mounts.
func sortMounts(mounts []specs.Mount) {
	depth := func(i int) int { return strings.Count(mounts[i].Destination, "/") }
	sort.SliceStable(mounts, func(i, j int) bool { return depth(i) < depth(j) })
}
