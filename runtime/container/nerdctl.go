package container

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/runtime/network"
)

// nerdctl reads the labels of a container, and files below its data root, which
// it arranges by the socket of containerd: with --data-root RunDir/nerdctl it
// finds logs and ports of ours as if it had made the containers itself.

// nerdctlRoot is the data root for nerdctl.
func (c *Containers) nerdctlRoot() string { return filepath.Join(c.o.RunDir, "nerdctl") }

// prepareNerdctl writes what is the same for all containers, and in one place:
// the run directory is memory.
func (c *Containers) prepareNerdctl() error {
	if err := os.MkdirAll(c.nerdctlRoot(), 0o700); err != nil {
		return err
	}
	for _, driver := range []string{"json-file", "none"} {
		if err := os.WriteFile(filepath.Join(c.nerdctlRoot(), driver+".json"), []byte(`{"driver":"`+driver+`"}`), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// nerdctlDir is where nerdctl looks for the files of a container.
func (c *Containers) nerdctlDir(id string) string {
	address := ""
	if conn, ok := c.o.Client.Conn().(interface{ Target() string }); ok {
		address = strings.TrimPrefix(conn.Target(), "unix://")
	}
	if resolved, err := filepath.EvalSymlinks(address); err == nil {
		address = resolved
	}
	sum := sha256.Sum256([]byte(address))
	return filepath.Join(c.nerdctlRoot(), hex.EncodeToString(sum[:4]), "containers", c.o.Namespace, id)
}

// showNerdctl lets nerdctl find the log and the ports of a container that is
// about to start.
func (c *Containers) showNerdctl(id string, l Labels) error {
	if err := c.writeNerdctl(id, l); err != nil {
		return fmt.Errorf("cannot show it to nerdctl: %w", err)
	}
	return nil
}

func (c *Containers) writeNerdctl(id string, l Labels) error {
	dir := c.nerdctlDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	driver := "json-file"
	if l.Logging.None {
		driver = "none"
	}
	shared := filepath.Join(c.nerdctlRoot(), driver+".json")
	for name, target := range map[string]string{"log-config.json": shared, id + "-json.log": log.JSONPath(c.LogPath(id))} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if len(l.Ports) == 0 {
		return nil
	}
	ports, err := nerdctlPortMappings(l.Ports)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "network-config.json"), []byte(`{"portMappings":`+ports+`}`), 0o600)
}

func nerdctlNetworkNames(s network.Sandbox) (string, error) {
	names := make([]string, 0, len(s.Attached)+1)
	for _, a := range s.Attached {
		names = append(names, a.Network.Name)
	}
	if s.Host {
		names = append(names, "host")
	}
	text, err := json.Marshal(names)
	return string(text), err
}

// nerdctlPortMappings is the JSON that nerdctl shows in its PORTS column.
func nerdctlPortMappings(ports []network.Port) (string, error) {
	type mapping struct {
		HostPort      int32
		ContainerPort int32
		Protocol      string
		HostIP        string
	}
	if len(ports) == 0 {
		return "", nil
	}
	list := make([]mapping, len(ports))
	for i, p := range ports {
		list[i] = mapping{int32(p.HostPort), int32(p.ContainerPort), p.Protocol, hostIP(p).String()}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("cannot encode ports: %w", err)
	}
	return string(text), nil
}
