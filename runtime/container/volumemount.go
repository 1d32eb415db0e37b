package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"

	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/tree"
)

const maxVolumeOptions = 4096 // bytes of all options together; the kernel takes a page

// Options that mount(8) handles itself, and the kernel refuses.
var mountProgramOptions = []string{"defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail", "async", "loud"}

func (v Volume) checkType() error {
	if v.Type == "" {
		return nil
	}
	if len(v.Type) > 32 || strings.Trim(v.Type, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return fmt.Errorf("volume %s: %.40q is not a file system type", v.Name, v.Type)
	}
	size := len(v.Device)
	for _, o := range v.Options {
		size += len(o) + 1
		if o == "remount" || o == "loop" || strings.HasPrefix(o, "X-containerd.") || strings.ContainsAny(o, ",\x00") {
			return fmt.Errorf("volume %s: cannot mount with option %.40q", v.Name, o)
		}
	}
	if size >= maxVolumeOptions {
		return fmt.Errorf("volume %s: its options have %d bytes; the kernel allows less than %d", v.Name, size, maxVolumeOptions)
	}
	return nil
}

// mount mounts a volume at dir, unless it is mounted. A silent server blocks mount(2) for minutes:
// ctx ends only the wait, and later calls wait for the same attempt.
func (vs *volumes) mount(ctx context.Context, dir string, v Volume) error {
	attempt := vs.mounting.DoChan(dir, func() (any, error) {
		return nil, contain.Call(func() error { return mountOnce(ctx, dir, v) })
	})
	select {
	case done := <-attempt:
		return done.Err
	case <-ctx.Done():
		return fmt.Errorf("%s %s is not mounted yet: %w", v.Type, v.Device, ctx.Err())
	}
}

func mountOnce(ctx context.Context, dir string, v Volume) error {
	mounted, err := isMounted(dir)
	if err != nil || mounted {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil { // for root only, as all volumes
		return err
	}
	m, err := v.mount(ctx)
	if err != nil {
		return err
	}
	switch {
	case m.Type == "bind" && v.Real != "" && !isDirect(v.Real):
		f, err := openReal(v.Real)
		if err != nil {
			return fmt.Errorf("cannot mount %s: %w", v.Device, err)
		}
		defer f.Close()
		m.Source = fdPath(f)
	case m.Type != "bind":
		if err := checkLink(v.Device, v.Real); err != nil {
			return err
		}
	}
	if err := mountAt(dir, m); err != nil {
		return fmt.Errorf("cannot mount %s %s: %w", v.Type, v.Device, err)
	}
	return nil
}

// mount needs neither mount(8) nor its programs for network file systems.
func (v Volume) mount(ctx context.Context) (mount.Mount, error) {
	m := mount.Mount{Type: v.Type, Source: cmp.Or(v.Device, v.Type)}
	for _, o := range v.Options {
		name, _, _ := strings.Cut(o, "=")
		if slices.Contains(mountProgramOptions, o) || name == "comment" || strings.HasPrefix(name, "x-") {
			continue
		}
		m.Options = append(m.Options, o)
	}
	switch v.Type {
	case "none", "bind":
		m.Type = "bind"
		if !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
			m.Options = append(m.Options, "rbind")
		}
		if !filepath.IsAbs(v.Device) {
			return m, fmt.Errorf("%.80q is not an absolute path", v.Device)
		}
		if !exists(v.Device) {
			return m, fmt.Errorf("%s: %w", v.Device, ErrNotFound)
		}
	case "nfs", "nfs4":
		host, _, _ := strings.Cut(v.Device, ":")
		if strings.HasPrefix(v.Device, "[") {
			host, _, _ = strings.Cut(v.Device[1:], "]")
		}
		if err := setAddress(ctx, &m, "addr", host); err != nil {
			return m, err
		}
	case "cifs", "smb3":
		if u, err := url.Parse(filepath.ToSlash(strings.ReplaceAll(v.Device, `\`, "/"))); err == nil {
			key := "ip"
			if slices.ContainsFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "addr=") }) {
				key = "addr"
			}
			if err := setAddress(ctx, &m, key, u.Hostname()); err != nil {
				return m, err
			}
		}
	}
	return m, nil
}

// setAddress resolves the name in the option key, or host: the kernel resolves no names.
func setAddress(ctx context.Context, m *mount.Mount, key, host string) error {
	at := slices.IndexFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, key+"=") })
	if at >= 0 {
		host = strings.TrimPrefix(m.Options[at], key+"=")
	}
	if host == "" {
		return nil // the kernel reports what is missing
	}
	if net.ParseIP(host) == nil {
		found, err := net.DefaultResolver.LookupIPAddr(ctx, host)
		if err != nil {
			return fmt.Errorf("cannot find the server: %w", err)
		}
		i := max(slices.IndexFunc(found, func(a net.IPAddr) bool { return a.IP.To4() != nil }), 0)
		host = found[i].String()
	}
	option := key + "=" + host
	if at >= 0 {
		m.Options[at] = option
	} else {
		m.Options = append(m.Options, option)
	}
	return nil
}

// isMounted does not touch dir: a file server that is gone would not answer.
func isMounted(dir string) (mounted bool, err error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = tree.EachMount(func(at, _ string) (more bool) {
			mounted = at == filepath.Join(parent, filepath.Base(dir))
			return !mounted
		})
	}
	return mounted, err
}

func (vs *volumes) release(ctx context.Context) error {
	mounted, err := filepath.Glob(filepath.Join(vs.o.RunDir, "volumes", "*", "*"))
	if err != nil || len(mounted) == 0 {
		return err
	}
	vs.naming.Lock() // no one is creating a container that names it
	defer vs.naming.Unlock()
	all, err := vs.Recorded(ctx)
	if err != nil {
		return err
	}
	users := vs.users(all)
	for _, dir := range mounted {
		if len(users[dir]) > 0 {
			continue
		}
		err = errors.Join(err, detach(dir))
		_ = os.Remove(filepath.Dir(dir)) // fails unless it was the project's last
	}
	return err
}
