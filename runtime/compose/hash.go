package compose

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"time"

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

	Platform    string             `json:"platform,omitempty"`
	Annotations map[string]string  `json:"annotations,omitempty"`
	Groups      []string           `json:"groups,omitempty"`
	Hostname    string             `json:"hostname,omitempty"`
	Domainname  string             `json:"domainname,omitempty"`
	TTY         bool               `json:"tty,omitempty"`
	StdinOpen   bool               `json:"stdinOpen,omitempty"`
	Init        bool               `json:"init,omitempty"`
	PID         Namespace          `json:"pid,omitzero"`
	IPC         Namespace          `json:"ipc,omitzero"`
	UTS         Namespace          `json:"uts,omitzero"`
	Cgroup      Namespace          `json:"cgroup,omitzero"`
	Sysctls     map[string]string  `json:"sysctls,omitempty"`
	Ulimits     []Ulimit           `json:"ulimits,omitempty"`
	OOMScoreAdj *int               `json:"oomScoreAdj,omitempty"`
	Resources   *Resources         `json:"resources,omitempty"` // but for Memory and NanoCPUs, which are above
	Devices     []Device           `json:"devices,omitempty"`
	DeviceRules []string           `json:"deviceRules,omitempty"`
	CDI         []string           `json:"cdi,omitempty"`
	Volumes     map[string]*Volume `json:"volumes,omitempty"` // that are more than a directory of ours
	Files       []fileConfig       `json:"files,omitempty"`
	ShmSize     int64              `json:"shmSize,omitempty"`

	Network    Namespace           `json:"network,omitzero"`
	Attached   []Attachment        `json:"attached,omitempty"` // absent: the default network as it is without a word
	Networks   map[string]*Network `json:"networks,omitempty"` // those of Attached, by key
	ExtraHosts []ExtraHost         `json:"extraHosts,omitempty"`
	Links      []ServiceName       `json:"links,omitempty"`
	DNS        []netip.Addr        `json:"dns,omitempty"`
	DNSSearch  []string            `json:"dnsSearch,omitempty"`
	DNSOptions []string            `json:"dnsOptions,omitempty"`

	CapAdd          []string `json:"capAdd,omitempty"`
	CapDrop         []string `json:"capDrop,omitempty"`
	Privileged      bool     `json:"privileged,omitempty"`
	NoNewPrivileges bool     `json:"noNewPrivileges,omitempty"`
	Seccomp         Seccomp  `json:"seccomp,omitzero"`
	AppArmor        string   `json:"appArmor,omitempty"`
	UnmaskedPaths   bool     `json:"unmaskedPaths,omitempty"`

	RestartDelay  time.Duration  `json:"restartDelay,omitempty"`
	RestartWindow time.Duration  `json:"restartWindow,omitempty"`
	StopSignal    string         `json:"stopSignal,omitempty"`
	StopGrace     *time.Duration `json:"stopGrace,omitempty"`
	Healthcheck   *Healthcheck   `json:"healthcheck,omitempty"`
	PostStart     []Hook         `json:"postStart,omitempty"`
	PreStop       []Hook         `json:"preStop,omitempty"`
	Logging       Logging        `json:"logging,omitzero"`
}

type mountConfig struct {
	Volume      string `json:"volume,omitempty"`
	Path        string `json:"path,omitempty"`
	Target      string `json:"target"`
	ReadOnly    bool   `json:"readOnly,omitempty"`
	Create      bool   `json:"create,omitempty"`
	Propagation string `json:"propagation,omitempty"`
	NoCopy      bool   `json:"noCopy,omitempty"`
	Anonymous   bool   `json:"anonymous,omitempty"`
	Of          string `json:"of,omitempty"`
	NotBelow    bool   `json:"notBelow,omitempty"`
	Subpath     string `json:"subpath,omitempty"`
	Below       Below  `json:"below,omitempty"`
}

type fileConfig struct {
	Secret  bool          `json:"secret,omitempty"`
	Target  string        `json:"target"`
	UID     uint32        `json:"uid,omitempty"`
	GID     uint32        `json:"gid,omitempty"`
	Mode    uint32        `json:"mode"`
	Content digest.Digest `json:"content"`
}

type tmpfsConfig struct {
	Target  string   `json:"target"`
	Options []string `json:"options,omitempty"`
}

type portConfig struct {
	HostIP        string `json:"hostIP,omitempty"`
	HostPort      uint16 `json:"hostPort"`
	LastPort      uint16 `json:"lastPort,omitempty"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

// ConfigHash is a hash over everything that makes the container of a service:
// when it changes, the container is replaced. It does not depend on the order of
// keys or lists in the Compose file, on other services, nor on the version of
// this program; nor on what concerns no container by itself: how many there are,
// what they wait for and when their image is looked for.
func (p *Project) ConfigHash(service string, image digest.Digest) (string, error) {
	s := p.Services[service]
	if s == nil {
		return "", fmt.Errorf("cannot hash service %q: not in project %q", service, p.Name)
	}
	encoded, err := json.Marshal(p.config(s, image))
	if err != nil {
		return "", fmt.Errorf("cannot hash service %q: %w", service, err)
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:]), nil
}

func (p *Project) config(s *Service, image digest.Digest) containerConfig {
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
		Memory:        s.Resources.Memory,
		NanoCPUs:      s.Resources.NanoCPUs,
		Restart:       s.Restart.Mode,
		MaxRetries:    s.Restart.MaxRetries,

		Platform:    s.Platform,
		Annotations: s.Annotations,
		Groups:      s.Groups,
		Hostname:    s.Hostname,
		Domainname:  s.Domainname,
		TTY:         s.TTY,
		StdinOpen:   s.StdinOpen,
		Init:        s.Init,
		PID:         s.PID,
		IPC:         s.IPC,
		UTS:         s.UTS,
		Cgroup:      s.Cgroup,
		Sysctls:     s.Sysctls,
		Ulimits:     s.Ulimits,
		OOMScoreAdj: s.OOMScoreAdj,
		Resources:   otherResources(s.Resources),
		Devices:     s.Devices,
		DeviceRules: s.DeviceRules,
		CDI:         s.CDI,
		ShmSize:     s.ShmSize,

		Network:    s.Network,
		ExtraHosts: s.ExtraHosts,
		Links:      s.Links,
		DNS:        s.DNS,
		DNSSearch:  s.DNSSearch,
		DNSOptions: s.DNSOptions,

		CapAdd:          s.CapAdd,
		CapDrop:         s.CapDrop,
		Privileged:      s.Privileged,
		NoNewPrivileges: s.NoNewPrivileges,
		Seccomp:         s.Seccomp,
		AppArmor:        s.AppArmor,
		UnmaskedPaths:   s.UnmaskedPaths,

		RestartDelay:  s.Restart.Delay,
		RestartWindow: s.Restart.Window,
		StopSignal:    s.StopSignal,
		StopGrace:     s.StopGrace,
		Healthcheck:   s.Healthcheck,
		PostStart:     s.PostStart,
		PreStop:       s.PreStop,
		Logging:       s.Logging,
	}
	if s.Entrypoint != nil {
		c.Entrypoint = &s.Entrypoint
	}
	if s.Command != nil {
		c.Command = &s.Command
	}
	for _, m := range s.Mounts {
		c.Mounts = append(c.Mounts, mountConfig{
			m.Volume, m.Path, m.Target, m.ReadOnly, m.Create, m.Propagation, m.NoCopy, m.Anonymous, m.Of, m.NotBelow, m.Subpath, m.Below,
		})
		if v := p.Volumes[m.Volume]; v != nil && (v.External || v.Type != "") {
			if c.Volumes == nil {
				c.Volumes = map[string]*Volume{}
			}
			c.Volumes[m.Volume] = v
		}
	}
	for _, t := range s.Tmpfs {
		c.Tmpfs = append(c.Tmpfs, tmpfsConfig(t))
	}
	for _, f := range s.Files {
		c.Files = append(c.Files, fileConfig{f.Secret, f.Target, f.UID, f.GID, f.Mode, digest.FromBytes(f.Content)})
	}
	for _, port := range s.Ports {
		address := ""
		if port.HostIP.IsValid() {
			address = port.HostIP.String()
		}
		c.Ports = append(c.Ports, portConfig{address, port.HostPort, port.LastPort, port.ContainerPort, port.Protocol})
	}
	if !p.onlyDefault(s) {
		c.Attached = s.Attached
		c.Networks = map[string]*Network{}
		for _, a := range s.Attached {
			c.Networks[a.Network] = p.Networks[a.Network]
		}
	}
	return c
}

// otherResources are those that the first form of the hash did not have.
func otherResources(r Resources) *Resources {
	r.Memory, r.NanoCPUs = 0, 0
	if reflect.ValueOf(r).IsZero() {
		return nil
	}
	return &r
}

// onlyDefault tells a service that is on the default network of the project, of
// which the Compose file says nothing.
func (p *Project) onlyDefault(s *Service) bool {
	if len(s.Attached) != 1 || s.Attached[0].Network != defaultNetwork {
		return len(s.Attached) == 0
	}
	a := s.Attached[0]
	a.Network, a.Priority, a.Gateway = "", 0, 0
	n := *p.Networks[defaultNetwork]
	ours := n.Name == p.Name+"_"+defaultNetwork && n.Driver == "bridge"
	n.Name, n.Driver, n.Labels, n.Attachable = "", "", nil, false
	return ours && reflect.ValueOf(a).IsZero() && reflect.ValueOf(n).IsZero()
}
