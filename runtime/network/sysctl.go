package network

import (
	"bytes"
	"errors"
	"fmt"
	"os"
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

// switchOffIPv6 does so for a link, or for "all" and "default". A kernel
// without IPv6 needs no switching.
func switchOffIPv6(link string) error {
	err := setSysctl("net/ipv6/conf/"+link+"/disable_ipv6", "1")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
