package compose

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
)

// containerConfig is what makes a container, in a form that must not change:
// another encoding of the same service replaces every container on every device.
// New fields come last and are left out when empty (or are a new version).
type containerConfig struct {
	Version       int               `json:"version"` // of this form
	Service       string            `json:"service"`
	Image         digest.Digest     `json:"image"`
	ContainerName string            `json:"containerName,omitempty"`
	Entrypoint    *[]string         `json:"entrypoint,omitempty"` // absent: as in the image; empty: none
	Command       *[]string         `json:"command,omitempty"`
	Environment   map[string]string `json:"environment,omitempty"` // sorted when encoded
	WorkingDir    string            `json:"workingDir,omitempty"`
	User          string            `json:"user,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Mounts        []mountConfig     `json:"mounts,omitempty"`
	Tmpfs         []tmpfsConfig     `json:"tmpfs,omitempty"`
	Ports         []portConfig      `json:"ports,omitempty"`
	ReadOnly      bool              `json:"readOnly,omitempty"`
	Memory        int64             `json:"memory,omitempty"`
	NanoCPUs      int64             `json:"nanoCPUs,omitempty"`
	Restart       RestartMode       `json:"restart"`
	MaxRetries    int               `json:"maxRetries,omitempty"`
}

type mountConfig struct {
	Volume      string `json:"volume,omitempty"`
	Path        string `json:"path,omitempty"`
	Target      string `json:"target"`
	ReadOnly    bool   `json:"readOnly,omitempty"`
	Create      bool   `json:"create,omitempty"`
	Propagation string `json:"propagation,omitempty"`
	NoCopy      bool   `json:"noCopy,omitempty"`
}

type tmpfsConfig struct {
	Target  string   `json:"target"`
	Options []string `json:"options,omitempty"`
}

type portConfig struct {
	HostIP        string `json:"hostIP,omitempty"`
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

// ConfigHash is a hash over everything that makes the container of a service:
// when it changes, the container is replaced. It does not depend on the order of
// keys or lists in the Compose file, on other services, nor on the version of
// this program.
func (p *Project) ConfigHash(service string, image digest.Digest) (string, error) {
	s := p.Services[service]
	if s == nil {
		return "", fmt.Errorf("cannot hash service %q: not in project %q", service, p.Name)
	}
	encoded, err := json.Marshal(s.config(image))
	if err != nil {
		return "", fmt.Errorf("cannot hash service %q: %w", service, err)
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:]), nil
}

func (s *Service) config(image digest.Digest) containerConfig {
	c := containerConfig{
		Version:       1,
		Service:       s.Name,
		Image:         image,
		ContainerName: s.ContainerName,
		Environment:   s.Environment,
		WorkingDir:    s.WorkingDir,
		User:          s.User,
		Labels:        s.Labels,
		ReadOnly:      s.ReadOnly,
		Memory:        s.Memory,
		NanoCPUs:      s.NanoCPUs,
		Restart:       s.Restart.Mode,
		MaxRetries:    s.Restart.MaxRetries,
	}
	if s.Entrypoint != nil {
		c.Entrypoint = &s.Entrypoint
	}
	if s.Command != nil {
		c.Command = &s.Command
	}
	for _, m := range s.Mounts {
		c.Mounts = append(c.Mounts, mountConfig(m))
	}
	for _, t := range s.Tmpfs {
		c.Tmpfs = append(c.Tmpfs, tmpfsConfig(t))
	}
	for _, port := range s.Ports {
		address := ""
		if port.HostIP.IsValid() {
			address = port.HostIP.String()
		}
		c.Ports = append(c.Ports, portConfig{address, port.HostPort, port.ContainerPort, port.Protocol})
	}
	return c
}
