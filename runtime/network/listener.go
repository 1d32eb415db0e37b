package network

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	maxSockets     = 16 << 20 // bytes of a table of /proc/net that are looked at
	maxProcesses   = 8192
	maxDescriptors = 4096 // of one process
)

// listeningProcess names the process of the host that listens where the port
// would be published, as nginx (process 812). It is empty where that cannot be
// found out: a socket of the kernel's, or a process of another namespace. gopsutil
// cannot tell: it reads the table of the process's first thread, which may have
// been left in another network namespace.
func listeningProcess(p Port) string {
	sockets := make(map[string]bool)
	for _, table := range []string{p.Protocol, p.Protocol + "6"} {
		f, err := os.Open("/proc/thread-self/net/" + table)
		if err != nil {
			continue
		}
		listeners(io.LimitReader(f, maxSockets), p, sockets)
		_ = f.Close()
	}
	if len(sockets) == 0 {
		return ""
	}
	return holderOf(sockets)
}

// listeners collects the sockets that are in the way of the port, by inode, from a table
// as the kernel prints it: slot, local address, remote address, state, ...,
// inode as the tenth.
func listeners(table io.Reader, p Port, found map[string]bool) {
	const listening, unconnected = "0A", "07"
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != listening && fields[3] != unconnected {
			continue
		}
		address, number, ok := strings.Cut(fields[1], ":")
		n, err := strconv.ParseUint(number, 16, 16)
		if !ok || err != nil || uint16(n) != p.HostPort {
			continue
		}
		on, ok := hexAddress(address)
		if ok && (p.anywhere() || on.IsUnspecified() || on == p.HostIP) && fields[9] != "0" {
			found["socket:["+fields[9]+"]"] = true
		}
	}
}

// hexAddress reads an address whose every four bytes are a number of the
// machine's byte order.
func hexAddress(s string) (netip.Addr, bool) {
	if len(s) != 8 && len(s) != 32 {
		return netip.Addr{}, false
	}
	var b []byte
	for ; s != ""; s = s[8:] {
		word, err := strconv.ParseUint(s[:8], 16, 32)
		if err != nil {
			return netip.Addr{}, false
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(word))
	}
	addr, ok := netip.AddrFromSlice(b)
	return addr.Unmap(), ok
}

func holderOf(sockets map[string]bool) string {
	processes, err := os.Open("/proc")
	if err != nil {
		return ""
	}
	defer processes.Close()
	names, _ := processes.Readdirnames(maxProcesses)
	for _, pid := range names {
		if strings.Trim(pid, "0123456789") != "" {
			continue
		}
		fds, err := os.Open(filepath.Join("/proc", pid, "fd"))
		if err != nil {
			continue
		}
		open, _ := fds.Readdirnames(maxDescriptors)
		_ = fds.Close()
		for _, fd := range open {
			if target, err := os.Readlink(filepath.Join("/proc", pid, "fd", fd)); err == nil && sockets[target] {
				return fmt.Sprintf("%s (process %s)", comm(pid), pid)
			}
		}
	}
	return ""
}

// comm is the name of a process, which the process may choose.
func comm(pid string) string {
	name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
	if err != nil || len(name) > 64 {
		return "a process"
	}
	return strings.Trim(strconv.Quote(strings.TrimSpace(string(name))), `"`)
}
