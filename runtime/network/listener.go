package network

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	psnet "github.com/shirou/gopsutil/v4/net"
	"golang.org/x/sys/unix"
)

// maxDescriptors limits the open files looked at per process.
const maxDescriptors = 4096

// listeningProcess names the host's process at a port, such as nginx (process 812); "": unknown,
// as for a socket of the kernel or another namespace.
func listeningProcess(p Port) string {
	sockets, _ := psnet.ConnectionsPidMaxWithoutUids(p.Protocol, 0, maxDescriptors) // of all processes; none if it fails
	for _, s := range sockets {
		on, err := netip.ParseAddr(s.Laddr.IP)
		listens := s.Status == "LISTEN" || s.Type == unix.SOCK_DGRAM && s.Raddr.Port == 0
		if err == nil && listens && s.Pid > 0 && s.Laddr.Port == uint32(p.HostPort) &&
			(p.anywhere() || on.IsUnspecified() || on.Unmap() == p.HostIP) {
			return fmt.Sprintf("%s (process %d)", comm(s.Pid), s.Pid)
		}
	}
	return ""
}

// comm is the name of a process, which the process may choose.
func comm(pid int32) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || len(name) > 64 {
		return "a process"
	}
	return strings.Trim(strconv.Quote(strings.TrimSpace(string(name))), `"`)
}
