package compose

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// hashOrder is the order of hashing. It must not change: another encoding of the same service
// replaces every container on every device. Append new fields of Service, and omit them from
// its JSON when empty.
const hashOrder = `
version service image containerName entrypoint command environment workingDir user labels mounts tmpfs ports readOnly
memory nanoCPUs restart maxRetries

platform annotations groups hostname domainname tty stdinOpen init pid ipc uts cgroup sysctls ulimits oomScoreAdj
resources devices deviceRules cdi volumes files shmSize
network attached networks extraHosts links dns dnsSearch dnsOptions
capAdd capDrop privileged noNewPrivileges seccomp appArmor unmaskedPaths
restartDelay restartWindow stopSignal stopGrace healthcheck postStart preStop logging`

// hashed is a service as it is hashed: its own fields override those with the same names.
type hashed struct {
	*Service
	PullPolicy any `json:"pullPolicy,omitempty"` // not hashed, nor are the next two
	Replicas   any `json:"replicas,omitempty"`
	DependsOn  any `json:"dependsOn,omitempty"`

	Version       int                 `json:"version"`
	Image         digest.Digest       `json:"image"`
	Memory        int64               `json:"memory,omitempty"`
	NanoCPUs      int64               `json:"nanoCPUs,omitempty"`
	Restart       RestartMode         `json:"restart"`
	MaxRetries    int                 `json:"maxRetries,omitempty"`
	RestartDelay  time.Duration       `json:"restartDelay,omitempty"`
	RestartWindow time.Duration       `json:"restartWindow,omitempty"`
	Volumes       map[string]*Volume  `json:"volumes,omitempty"`  // other than plain directories of ours
	Networks      map[string]*Network `json:"networks,omitempty"` // those of Attached, by key
	Files         []hashedFile        `json:"files,omitempty"`
}

type hashedFile struct {
	File
	Content digest.Digest `json:"content"`
}

// ConfigHash is a hash over everything that makes the container of a service: when it changes,
// the container is replaced. It does not depend on the order of keys or lists in the file, on
// other services, on the version of this program, or on the number of replicas, what they wait
// for and when their image is looked up.
func (p *Project) ConfigHash(service string, image digest.Digest) (string, error) {
	s := p.Services[service]
	if s == nil {
		return "", fmt.Errorf("cannot hash service %q: not in project %q", service, p.Name)
	}
	encoded, err := p.encode(*s, image)
	if err != nil {
		return "", fmt.Errorf("cannot hash service %q: %w", service, err)
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:]), nil
}

// encode is the JSON that is hashed.
func (p *Project) encode(s Service, image digest.Digest) ([]byte, error) {
	h := hashed{
		Service: &s, Version: 1, Image: image,
		Memory: s.Resources.Memory, NanoCPUs: s.Resources.NanoCPUs,
		Restart: s.Restart.Mode, MaxRetries: s.Restart.MaxRetries, RestartDelay: s.Restart.Delay, RestartWindow: s.Restart.Window,
		Volumes: map[string]*Volume{}, Networks: map[string]*Network{},
	}
	s.Resources.Memory, s.Resources.NanoCPUs = 0, 0
	s.Devices = slices.Clone(s.Devices)
	for i := range s.Devices {
		s.Devices[i].Real = ""
	}
	for _, m := range s.Mounts {
		if v := p.Volumes[m.Volume]; v != nil && (v.External || v.Type != "") {
			h.Volumes[m.Volume] = v
		}
	}
	for _, f := range s.Files {
		h.Files = append(h.Files, hashedFile{f, digest.FromBytes(f.Content)})
	}
	if p.onlyDefault(&s) {
		s.Attached = nil
	}
	for _, a := range s.Attached {
		h.Networks[a.Network] = p.Networks[a.Network]
	}

	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	parts := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &parts); err != nil {
		return nil, err
	}
	var encoded bytes.Buffer
	for _, name := range append(strings.Fields(hashOrder), slices.Sorted(maps.Keys(parts))...) {
		if part, ok := parts[name]; ok {
			fmt.Fprintf(&encoded, ",%q:%s", name, part)
			delete(parts, name) // it is in the list twice
		}
	}
	encoded.WriteByte('}')
	encoded.Bytes()[0] = '{'
	return encoded.Bytes(), nil
}

// onlyDefault tells whether the service is only on the default network, without settings for it.
func (p *Project) onlyDefault(s *Service) bool {
	if len(s.Attached) != 1 || s.Attached[0].Network != defaultNetwork {
		return len(s.Attached) == 0
	}
	a := s.Attached[0]
	a.Network, a.Priority, a.Gateway = "", 0, 0
	n := *p.Networks[defaultNetwork]
	ours := n.Name == p.Name+"_"+defaultNetwork && n.Driver == "bridge"
	n.Name, n.Driver = "", ""
	return ours && reflect.ValueOf(a).IsZero() && reflect.ValueOf(n).IsZero()
}
