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

// showNerdctl lets nerdctl find the log and the ports of a container whose task
// was made, and when that was: its shim has the log open by then.
func (p *paths) showNerdctl(id string, l Labels) error {
	dir := p.nerdctlDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	driver := "json-file"
	if l.Logging.None {
		driver = "none"
	}
	files := map[string]string{
		"log-config.json": `{"driver":"` + driver + `"}`,
		"lifecycle.json":  encode(map[string]time.Time{"started_at": time.Now()}),
	}
	if len(l.Ports) > 0 {
		files["network-config.json"] = `{"portMappings":` + nerdctlPortMappings(l.Ports) + `}`
	}
	link := filepath.Join(dir, id+"-json.log")
	err := errors.Join(os.RemoveAll(link), os.Symlink(p.LogPath(id), link))
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return err
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
