package network

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"
)

// setSysctl writes below /proc/sys of the calling thread's network namespace,
// and only what differs: there may be a reason to have it read-only.
func setSysctl(key, value string) error {
	path := "/proc/sys/" + key
	if now, err := os.ReadFile(path); err == nil && string(bytes.TrimSpace(now)) == value {
		return nil
	}
	// Not os.WriteFile: nothing may be created or truncated here.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot set sysctl: %w", err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot set sysctl: %w", err)
	}
	return nil
}

// switchIPv6 switches it on or off for a link, or for "all" and "default". A
// kernel without IPv6 needs no switching off. Where it is on, addresses come
// from us alone and are used at once.
func switchIPv6(link string, on bool) error {
	dir := "net/ipv6/conf/" + link + "/"
	if !on {
		if err := setSysctl(dir+"disable_ipv6", "1"); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	for _, setting := range [][2]string{{"accept_ra", "0"}, {"autoconf", "0"}, {"accept_dad", "0"}, {"disable_ipv6", "0"}} {
		err := setSysctl(dir+setting[0], setting[1])
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s has no IPv6; the kernel does not support it: %w", link, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// linkSysctl splits key=value of a setting of one link, in which IFNAME stands
// for its name: net.ipv4.conf.IFNAME.log_martians=1.
func linkSysctl(setting, link string) (key, value string, err error) {
	key, value, ok := strings.Cut(setting, "=")
	parts := strings.Split(key, ".")
	valid := ok && len(parts) == 5 && parts[0] == "net" &&
		slices.Contains([]string{"ipv4", "ipv6", "mpls"}, parts[1]) &&
		slices.Contains([]string{"conf", "neigh"}, parts[2]) && parts[3] == "IFNAME" &&
		parts[4] != "" && strings.Trim(parts[4], "abcdefghijklmnopqrstuvwxyz0123456789_") == "" &&
		len(value) <= 64 && !strings.ContainsFunc(value, unicode.IsControl)
	if !valid {
		return "", "", fmt.Errorf("%.80q is not a link setting such as net.ipv4.conf.IFNAME.log_martians=1", setting)
	}
	parts[3] = link
	return strings.Join(parts, "/"), value, nil
}
