package policy

// Allow is what workloads may ask of the device. The zero value allows nothing
// that has to be asked for; see DefaultAllow.
type Allow struct {
	Privileged bool
	// Namespaces of the device that may be joined: network, pid, ipc, uts, cgroup.
	Namespaces []string
	// Mounts are prefixes of paths on the device; the longest that fits decides.
	Mounts []MountRule
	// Devices are patterns of paths below /dev and of CDI names, as in path.Match;
	// the last that fits decides, and one that begins with "!" refuses.
	Devices []string
	// Capabilities that may be added to those of an ordinary container, as
	// NET_ADMIN; "*": all.
	Capabilities []string
	// Ports of the device that may be published.
	Ports []PortRange
	// Registries that packages and images may come from, as host[:port]; "*": all.
	Registries []string
	// Unconfined allows to switch off seccomp, AppArmor and masked paths.
	Unconfined bool
	// Tags allows images that are named by a tag alone.
	Tags bool
	// Unsigned allows packages that nobody signed.
	Unsigned bool
	// CPUs, Memory and Storage bound what all services of all deployments may
	// reserve together: of cores, of bytes, of bytes. 0: what the device has.
	CPUs            float64
	Memory, Storage int64
}

// MountRule says what may be mounted below a path of the device.
type MountRule struct {
	Path   string
	Access MountAccess
}

// MountAccess is how something may be mounted.
type MountAccess string

// The accesses.
const (
	MountNever    MountAccess = "never"
	MountReadOnly MountAccess = "read-only"
	MountAlways   MountAccess = "always"
)

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// Ask is what a deployment asks of the device.
type Ask struct {
	Services []ServiceAsk
	// Held is what the other deployments of the device have reserved.
	Held Resources
	// Device is what it has.
	Device Resources
	// Own are the paths of the agent's own state, which nobody may mount.
	Own []string
}

// Resources are what can be shared out. 0 of a device: not known.
type Resources struct {
	CPUs            float64 // cores
	Memory, Storage int64   // bytes
}

// ServiceAsk is what one service asks for.
type ServiceAsk struct {
	Component, Service string

	Privileged   bool
	Namespaces   []string // of the device that it joins
	Mounts       []MountAsk
	Devices      []string // paths on the device, CDI names, and rules such as "c 188:* rwm"
	Capabilities []string // that it adds, as NET_ADMIN, or ALL
	Unconfined   []string // as seccomp, apparmor, systempaths
	Ports        []PortRange
	Image        string // normalised reference
	Registry     string // of the image, host[:port]
	Pinned       bool   // the image is named by its digest
	Signed       bool   // the package of its component was signed
	Reserved     Resources
}

// MountAsk is a path of the device that a service mounts.
type MountAsk struct {
	Path     string // absolute and clean, links resolved as far as they exist
	ReadOnly bool
}

// Refusal is one rule that a deployment does not keep.
type Refusal struct {
	Rule      string // the key of the configuration, as policy.allow.privileged
	Component string
	Service   string
	Text      string // what is asked for, for people
}

// DefaultAllow is what an ordinary Compose file may ask for, and nothing that
// takes over the device.
func DefaultAllow() Allow { return Allow{} }

// Admit says which rules a deployment does not keep; none: it may come in.
func (g *Gate) Admit(deployment string, labels map[string]string, ask Ask) []Refusal { return nil }
