package compose

import (
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

func (r *resolver) namespaces(s *Service, c types.ServiceConfig) {
	s.PID, s.IPC, s.UTS = namespace(c.Pid), namespace(c.Ipc), namespace(c.Uts)
	s.Cgroup.Mode = NamespaceMode(c.Cgroup) // host or private, by the schema
	s.Network = r.networkMode(s, c)
	if s.UTS.Mode == ModeHost && (s.Hostname != "" || s.Domainname != "") {
		r.refuse("hostname", "cannot be combined with uts: host")
	}
	s.Sysctls = r.sysctls(s, c.Sysctls)
}

// namespace parses a mode; every kind has "private".
func namespace(written string) Namespace {
	if written == string(ModeOwn) {
		return Namespace{}
	}
	mode, of, _ := strings.Cut(written, ":")
	return Namespace{Mode: NamespaceMode(mode), Of: of}
}

// networkMode reads network_mode, or the same setting as one of Docker's predefined networks.
func (r *resolver) networkMode(s *Service, c types.ServiceConfig) Namespace {
	mode := c.NetworkMode
	if mode != "" && len(c.Networks) > 0 {
		r.refuse("network_mode", "cannot be combined with networks")
	}
	for key := range c.Networks {
		switch name, predefined := r.predefined(key); {
		case !predefined:
		case len(c.Networks) > 1 && name != "bridge":
			r.refuse("networks."+key, "is Docker's network %q, which allows a service no other network", name)
		default:
			mode = name
		}
	}
	var n Namespace
	switch mode {
	case "", "default":
	case "bridge":
		r.note("network_mode", "bridge uses the default network of the project, which other projects do not share")
	default:
		n = namespace(mode)
	}
	if n.Mode == ModePrivate {
		return n
	}
	if len(c.Ports) > 0 {
		switch n.Mode {
		case ModeHost, ModeNone:
			r.note("ports", "have no effect with network_mode %s", n.Mode)
		default:
			r.refuse("ports", "must be published by the service whose network this one shares (network_mode %s)", mode)
		}
	}
	joins := n.Mode == ModeService || n.Mode == ModeContainer
	for key, conflicts := range map[string]bool{
		"hostname":    joins && c.Hostname != "",
		"domainname":  joins && c.DomainName != "",
		"extra_hosts": joins && len(c.ExtraHosts) > 0,
		"dns":         joins && len(c.DNS) > 0,
		"dns_search":  joins && len(c.DNSSearch) > 0,
		"dns_opt":     joins && len(c.DNSOpts) > 0,
		"links":       len(c.Links) > 0,
		"mac_address": c.MacAddress != "",
	} {
		if conflicts {
			r.refuse(key, "cannot be combined with network_mode %s", mode)
		}
	}
	return n
}

// ipcSysctls are the sysctls of an ipc namespace, besides fs.mqueue.*.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem",
	"kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced",
}

// sysctls accepts those of the container's own namespaces only: others would change the device.
func (r *resolver) sysctls(s *Service, written map[string]string) map[string]string {
	for name, value := range written {
		key := "sysctls." + name
		ipc := slices.Contains(ipcSysctls, name) || strings.HasPrefix(name, "fs.mqueue.")
		net := strings.HasPrefix(name, "net.")
		own := s.Network.Mode == ModePrivate || s.Network.Mode == ModeNone
		switch {
		case !isWord(name) || strings.ContainsAny(name, "/") || strings.Contains(name, "..") || len(value) > 1024 || strings.ContainsAny(value, "\x00\n"):
			r.refuse(key, "is malformed")
		case ipc && (s.IPC.Mode != ModePrivate && s.IPC.Mode != ModeShareable):
			r.refuse(key, "cannot be combined with ipc %s: it would change the namespace of others", s.IPC.Mode)
		case net && !own:
			r.refuse(key, "cannot be combined with network_mode %s: it would change the namespace of others", s.Network.Mode)
		case name == "kernel.domainname" && s.UTS.Mode == ModeHost:
			r.refuse(key, "cannot be combined with uts host: it would change the device")
		case !ipc && !net && name != "kernel.domainname":
			r.refuse(key, "is not supported: it belongs to the whole device, not to a container")
		}
	}
	return written
}
