package container

import (
	"cmp"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/margolite/margolite/runtime/network"
)

// nerdctl reads the labels of a container, and files below its data root, which
// it arranges by the socket of containerd: with --data-root RunDir/nerdctl it
// finds logs and ports of ours as if it had made the containers itself.

// The drivers of logs, as nerdctl reads them.
const (
	nerdctlJSON = "json-file"
	nerdctlNone = "none"
)

// prepareNerdctl writes what is the same for all containers, and in one place:
// the run directory is memory.
func (c *Containers) prepareNerdctl() error {
	if err := os.MkdirAll(c.nerdctlRoot(), 0o700); err != nil {
		return err
	}
	for driver, file := range c.nerdctlDrivers() {
		if err := os.WriteFile(file, []byte(`{"driver":"`+driver+`"}`), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// showNerdctl lets nerdctl find the log and the ports of a container whose task
// was made, and when that was: its shim has the log open by then.
func (c *Containers) showNerdctl(id string, l Labels) error {
	dir := c.nerdctlDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	driver := nerdctlJSON
	if l.Logging.None {
		driver = nerdctlNone
	}
	for name, target := range map[string]string{"log-config.json": c.nerdctlDrivers()[driver], id + "-json.log": c.LogPath(id)} {
		link := filepath.Join(dir, name)
		if now, err := os.Readlink(link); err == nil && now == target {
			continue
		}
		if err := errors.Join(os.RemoveAll(link), os.Symlink(target, link)); err != nil {
			return err
		}
	}
	started := encode(map[string]time.Time{"started_at": time.Now()})
	if err := os.WriteFile(filepath.Join(dir, "lifecycle.json"), []byte(started), 0o600); err != nil {
		return err
	}
	if len(l.Ports) == 0 {
		return nil
	}
	ports := nerdctlPortMappings(l.Ports)
	return os.WriteFile(filepath.Join(dir, "network-config.json"), []byte(`{"portMappings":`+ports+`}`), 0o600)
}

func nerdctlNetworkNames(s network.Sandbox) string {
	names := make([]string, 0, len(s.Attached)+1)
	for _, a := range s.Attached {
		names = append(names, a.Network.Name)
	}
	switch {
	case s.Host:
		names = append(names, "host")
	case len(names) == 0:
		names = append(names, "none")
	}
	return encode(names)
}

// nerdctlPortMappings is the JSON that nerdctl shows in its PORTS column.
func nerdctlPortMappings(ports []network.Port) string {
	type mapping struct {
		HostPort      int32
		ContainerPort int32
		Protocol      string
		HostIP        string
	}
	if len(ports) == 0 {
		return ""
	}
	list := make([]mapping, len(ports))
	for i, p := range ports {
		list[i] = mapping{int32(p.HostPort), int32(p.ContainerPort), p.Protocol, cmp.Or(p.HostIP, netip.IPv4Unspecified()).String()}
	}
	return encode(list)
}
