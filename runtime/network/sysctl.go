package network

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
)

// readSysctl reads below /proc/sys of the calling thread's network namespace.
func readSysctl(key string) (string, error) {
	value, err := os.ReadFile("/proc/sys/" + key)
	if err != nil {
		return "", fmt.Errorf("cannot read sysctl: %w", err)
	}
	return string(bytes.TrimSpace(value)), nil
}

// setSysctl writes a setting only if it differs: it may be read-only for a reason.
func setSysctl(key, value string) error {
	if now, err := readSysctl(key); err == nil && now == value {
		return nil
	}
	// Not os.WriteFile: nothing may be created or truncated here.
	f, err := os.OpenFile("/proc/sys/"+key, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot set sysctl: %w", err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot set sysctl: %w", err)
	}
	return nil
}

// linkSysctl splits a setting such as net.ipv4.conf.IFNAME.log_martians=1 for the link.
func linkSysctl(setting, link string) (key, value string) {
	key, value, _ = strings.Cut(setting, "=")
	return strings.Replace(strings.ReplaceAll(key, ".", "/"), "IFNAME", link, 1), value
}
