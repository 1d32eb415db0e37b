package compose

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
)

// Project is a Compose project of which this runtime supports everything.
type Project struct {
	Name       string
	WorkingDir string // holds the Compose file; relative paths start here
	// Services by name, with everything resolved: this is what the runtime runs.
	// Those of profiles that are not active are left out.
	Services map[string]*Service
	Networks map[string]*Network // by key, those that services are on
	Volumes  map[string]*Volume  // by Name, those that services mount
	// Compose is the model that Services was taken from.
	Compose *types.Project
	// Outside are the files beyond WorkingDir that the project was read from,
	// sorted, links resolved; none with Options.Strict.
	Outside []string
	// Warnings tell people what is likely not what they meant: variables that
	// are not set, keys that are obsolete or mean nothing on a device.
	Warnings []string
	// Unused are the variables of Options.Environment that nothing in the files refers
	// to, and the Options.Ports that nothing is published on.
	Unused map[string]bool
}

// Service is one service of a project in the words of this runtime. What it does
// not hold, a container cannot have.
type Service struct {
	Name          string
	ContainerName string // a name for people; nothing resolves it
	Image         string // normalised: docker.io/library/nginx:latest
	Platform      string // as linux/arm/v7; empty: that of the device
	PullPolicy    PullPolicy
	Replicas      int // 0: none run
	Labels        map[string]string
	Annotations   map[string]string

	// Entrypoint and Command replace those of the image; nil: as in the image,
	// empty: none.
	Entrypoint  []string
	Command     []string
	Environment map[string]string
	WorkingDir  string   // empty: as in the image
	User        string   // user[:group], names or numbers; empty: as in the image
	Groups      []string // further groups, names or numbers
	Hostname    string   // empty: the name of the service
	Domainname  string
	TTY         bool
	StdinOpen   bool
	Init        bool // a small process 1 that buries orphans
	PID         Namespace
	IPC         Namespace // with ModeShareable: others may join it
	UTS         Namespace
	Cgroup      Namespace
	Sysctls     map[string]string
	Ulimits     []Ulimit // sorted by name
	OOMScoreAdj *int

	Resources   Resources
	Devices     []Device
	DeviceRules []string // "c 188:* rwm"
	CDI         []string // vendor.com/class=name, also from gpus and reservations

	Mounts   []Mount // in order of their targets
	Tmpfs    []Tmpfs // in order of their targets
	Files    []File  // configs and secrets, in order of their targets
	ShmSize  int64   // bytes; 0: 64 MiB
	ReadOnly bool    // the root file system

	Network    Namespace     // ModePrivate: the networks below
	Attached   []Attachment  // the first has the default route
	ExtraHosts []ExtraHost   // sorted
	Links      []ServiceName // further names for other services, sorted
	DNS        []netip.Addr
	DNSSearch  []string
	DNSOptions []string
	Ports      []Port // sorted

	CapAdd          []string // as CAP_NET_ADMIN, or ALL
	CapDrop         []string
	Privileged      bool
	NoNewPrivileges bool
	Seccomp         Seccomp
	AppArmor        string // profile; empty: as the device has it, "unconfined": none
	UnmaskedPaths   bool   // security_opt systempaths=unconfined

	DependsOn   []Dependency // sorted by service
	Restart     Restart
	StopSignal  string         // empty: as in the image
	StopGrace   *time.Duration // nil: 10 s
	Healthcheck *Healthcheck   // nil: as in the image
	PostStart   []Hook
	PreStop     []Hook
	Logging     Logging
}

// PullPolicy says when an image is looked for in its registry.
type PullPolicy string

// The pull policies. What a deployment staged is never looked for again.
const (
	PullMissing PullPolicy = "missing"
	PullAlways  PullPolicy = "always"
	PullNever   PullPolicy = "never"
)

// NamespaceMode says whose namespace of one kind a container lives in.
type NamespaceMode string

// The modes; not every kind of namespace has all of them.
const (
	ModePrivate   NamespaceMode = ""          // its own; cgroup: as is usual on the device
	ModeOwn       NamespaceMode = "private"   // cgroup: its own in any case
	ModeHost      NamespaceMode = "host"      // the device's
	ModeNone      NamespaceMode = "none"      // network: its own, with nothing but loopback
	ModeShareable NamespaceMode = "shareable" // ipc: its own, which others may join
	ModeService   NamespaceMode = "service"   // that of Of, a service of the project
	ModeContainer NamespaceMode = "container" // that of Of, a container by name or id
)

// Namespace is the mode and, where it joins another, whose it joins.
type Namespace struct {
	Mode NamespaceMode `json:"mode,omitempty"`
	Of   string        `json:"of,omitempty"`
}

// Ulimit is a resource limit of a process; -1 is no limit.
type Ulimit struct {
	Name string `json:"name"` // as nofile
	Soft int64  `json:"soft"`
	Hard int64  `json:"hard"`
}

// Resources are what a container may use of the device. Zero is no limit, unless
// said otherwise.
type Resources struct {
	Memory            int64         `json:"memory,omitempty"`            // bytes
	MemoryReservation int64         `json:"memoryReservation,omitempty"` // bytes
	MemorySwap        int64         `json:"memorySwap,omitempty"`        // memory and swap together in bytes; -1: no limit
	Swappiness        *uint64       `json:"swappiness,omitempty"`        // 0 to 100
	OOMKillDisable    bool          `json:"oomKillDisable,omitempty"`
	NanoCPUs          int64         `json:"nanoCPUs,omitempty"` // billionths of a CPU
	CPUReservation    int64         `json:"-"`                  // the same; for those who share the device out, no container changes with it
	CPUShares         uint64        `json:"cpuShares,omitempty"`
	CPUPeriod         uint64        `json:"cpuPeriod,omitempty"` // microseconds
	CPUQuota          int64         `json:"cpuQuota,omitempty"`  // microseconds
	CPUSet            string        `json:"cpuSet,omitempty"`    // 0-3,5
	Pids              int64         `json:"pids,omitempty"`      // -1: no limit
	BlkioWeight       uint16        `json:"blkioWeight,omitempty"`
	BlkioDevices      []BlkioDevice `json:"blkioDevices,omitempty"` // sorted by path
	CgroupParent      string        `json:"cgroupParent,omitempty"`
}

// BlkioDevice is a limit for one block device.
type BlkioDevice struct {
	Path      string `json:"path"`
	Weight    uint16 `json:"weight,omitempty"`
	ReadBPS   uint64 `json:"readBPS,omitempty"`
	WriteBPS  uint64 `json:"writeBPS,omitempty"`
	ReadIOPS  uint64 `json:"readIOPS,omitempty"`
	WriteIOPS uint64 `json:"writeIOPS,omitempty"`
}

// Device is a device node of the device in the container.
type Device struct {
	Path        string `json:"path"`        // on the device
	Real        string `json:"-"`           // where it led when the project was loaded; for those who open it
	Target      string `json:"target"`      // in the container
	Permissions string `json:"permissions"` // of r, w, m
}

// Mount is a named volume, an anonymous one, a path of the device or a part of
// an image in a container. Exactly one of Volume, Anonymous and Path is set.
type Mount struct {
	Volume    string // name of the volume within the project
	Anonymous bool   // a volume without a name, which belongs to replica and target
	Of        string // Anonymous: the service whose volume it is (volumes_from), that of its first replica; empty: this one
	Path      string // absolute, cleaned path on the device
	Real      string // Path: where it led when the project was loaded; for those who mount
	Target    string // absolute, cleaned path in the container

	ReadOnly    bool
	Create      bool   // Path: make a directory there when nothing is there
	Propagation string // Path: private, rslave, ...; empty: rprivate
	NotBelow    bool   // Path: without what is mounted below it (bind.recursive: disabled)
	Below       string // ReadOnly: what that means for what is mounted below it (bind.recursive)
	NoCopy      bool   // a volume: leave a new one empty instead of filling it from the image
	Subpath     string // a volume: only this directory of it
}

// What Mount.Below may be; empty: read-only too, where the kernel can.
const (
	BelowReadOnly = "readonly" // read-only too, or the container is not made
	BelowWritable = "writable" // as it is on the device
)

// Tmpfs is a file system in memory.
type Tmpfs struct {
	Target  string
	Options []string // mount options as given, checked and sorted: "noexec", "size=64m", ...
}

// Volume is a named volume.
type Volume struct {
	Name     string            `json:"name"`               // within the project; of an external one: its whole name
	External bool              `json:"external,omitempty"` // made by another project
	Type     string            `json:"type,omitempty"`     // of a file system to be mounted: nfs, cifs, tmpfs, none (a bind); empty: a directory of ours
	Device   string            `json:"device,omitempty"`   // of Type
	Real     string            `json:"-"`                  // where Device led when the project was loaded; for those who mount it
	Options  []string          `json:"options,omitempty"`  // of Type, as mount -o takes them
	Labels   map[string]string `json:"-"`                  // for people
}

// File is a config or a secret as a file in a container.
type File struct {
	Secret  bool
	Name    string // of the config or secret
	Target  string // absolute path in the container
	UID     uint32
	GID     uint32
	Mode    uint32 // permission bits
	Content []byte `json:"-"` // at most 1 MiB
}

// Network is a network that services of the project are on.
type Network struct {
	// Name is the network's name on the device, by which projects share one:
	// <project>_<key>, unless the file gives another.
	Name       string            `json:"name"`
	External   bool              `json:"external,omitempty"` // another project defines it
	Driver     string            `json:"driver"`             // bridge, macvlan or ipvlan; empty: External
	Options    map[string]string `json:"options,omitempty"`  // as Docker names them, checked: see networkOptions
	Internal   bool              `json:"internal,omitempty"` // without a way out
	Attachable bool              `json:"-"`                  // asks for nothing here
	IPv6       bool              `json:"ipv6,omitempty"`
	NoIPv4     bool              `json:"noIPv4,omitempty"`
	Pools      []Pool            `json:"pools,omitempty"` // at most one of each family
	Labels     map[string]string `json:"-"`               // for people
}

// Pool is where addresses of a network come from; zero values are chosen.
type Pool struct {
	Subnet  netip.Prefix          `json:"subnet,omitzero"`
	Gateway netip.Addr            `json:"gateway,omitzero"`
	Range   netip.Prefix          `json:"range,omitzero"` // within Subnet
	Taken   map[string]netip.Addr `json:"taken,omitempty"`
}

// Attachment puts a service on a network.
type Attachment struct {
	Network   string       `json:"network"` // key
	Aliases   []string     `json:"aliases,omitempty"`
	IPv4      netip.Addr   `json:"ipv4,omitzero"`       // zero: chosen
	IPv6      netip.Addr   `json:"ipv6,omitzero"`       // zero: chosen, where the network has IPv6
	LinkLocal []netip.Addr `json:"linkLocal,omitempty"` // further addresses
	MAC       string       `json:"mac,omitempty"`       // empty: derived from the address
	Interface string       `json:"interface,omitempty"` // name in the container; empty: eth0, eth1, ...
	Priority  int          `json:"-"`                   // the highest comes first
	Gateway   int          `json:"-"`                   // gw_priority: the highest has the default route
	Sysctls   []string     `json:"sysctls,omitempty"`   // driver_opts com.docker.network.endpoint.sysctls: net.ipv4.conf.IFNAME.x=1
}

// ExtraHost is a line in the hosts file.
type ExtraHost struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address,omitzero"` // zero: the device itself (host-gateway)
}

// ServiceName is a name for another service that only one service knows.
type ServiceName struct {
	Service string `json:"service"`
	Name    string `json:"name"`
}

// Port is a port of a container that is published on the device.
type Port struct {
	HostIP netip.Addr // the zero value: every address of the device, of the families that the network has
	// HostPort to LastPort are the ports of the device of which one is taken,
	// the first that is free; both 0: any.
	HostPort      uint16
	LastPort      uint16 // 0: HostPort and no other
	ContainerPort uint16
	Protocol      string // tcp, udp or sctp
}

// Seccomp is the filter of system calls.
type Seccomp struct {
	Unconfined bool   `json:"unconfined,omitempty"`
	Profile    []byte `json:"profile,omitempty"` // in Docker's JSON form; nil: the default profile
}

// Condition says what a dependency must have come to.
type Condition string

// The conditions of depends_on.
const (
	ConditionStarted   Condition = "service_started"
	ConditionHealthy   Condition = "service_healthy"
	ConditionCompleted Condition = "service_completed_successfully"
)

// Dependency is a service that has to be there before another one starts.
type Dependency struct {
	Service   string    `json:"service"`
	Condition Condition `json:"condition"`
	Required  bool      `json:"required"`          // false: a failure of it is passed over
	Restart   bool      `json:"restart,omitempty"` // start again when it is replaced
}

// RestartMode says when an ended container is started again.
type RestartMode string

// The restart modes of Compose.
const (
	RestartNo            RestartMode = "no"
	RestartAlways        RestartMode = "always"
	RestartOnFailure     RestartMode = "on-failure"
	RestartUnlessStopped RestartMode = "unless-stopped"
)

// Restart is the restart policy of a service.
type Restart struct {
	Mode       RestartMode
	MaxRetries int           // with on-failure; 0: no bound
	Delay      time.Duration // the least delay; 0: chosen
	Window     time.Duration // what runs that long starts with a clean record; 0: 10 s
}

// Healthcheck is a command that tells whether a service is well. Zero values are
// those of the image, else of Compose.
type Healthcheck struct {
	Test          []string      `json:"test,omitempty"` // as CMD, CMD-SHELL or NONE with what follows
	Interval      time.Duration `json:"interval,omitempty"`
	Timeout       time.Duration `json:"timeout,omitempty"`
	StartPeriod   time.Duration `json:"startPeriod,omitempty"`
	StartInterval time.Duration `json:"startInterval,omitempty"`
	Retries       int           `json:"retries,omitempty"`
}

// Hook is a command that runs in a container after it started or before it stops.
type Hook struct {
	Command     []string          `json:"command"`
	User        string            `json:"user,omitempty"`
	Privileged  bool              `json:"privileged,omitempty"`
	WorkingDir  string            `json:"workingDir,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
}

// Logging says how much of the output is kept. Zero values are chosen.
type Logging struct {
	None    bool  `json:"none,omitempty"`    // nothing is kept
	MaxSize int64 `json:"maxSize,omitempty"` // bytes of one file
	MaxFile int   `json:"maxFile,omitempty"`
}

// Order is the names of the services, each after those it depends on; services
// that do not depend on each other are in order of their names.
func (p *Project) Order() []string {
	order := make([]string, 0, len(p.Services))
	done := make(map[string]bool, len(p.Services))
	var visit func(name string)
	visit = func(name string) {
		if done[name] {
			return
		}
		done[name] = true // Load has refused cycles
		for _, dependency := range p.Services[name].DependsOn {
			visit(dependency.Service)
		}
		order = append(order, name)
	}
	for _, name := range p.names() {
		visit(name)
	}
	return order
}

// Image is an image that a project needs.
type Image struct {
	Ref      string // normalised
	Platform string // empty: that of the device
	Policy   PullPolicy
}

// Key is the name of an image within a project.
func (i Image) Key() string {
	if i.Platform == "" {
		return i.Ref
	}
	return i.Ref + " (" + i.Platform + ")"
}

// ImageOf is the image of a service.
func (s *Service) ImageOf() Image {
	return Image{Ref: s.Image, Platform: s.Platform, Policy: s.PullPolicy}
}

// Images are the images of all services, sorted by their keys, each once. One
// that services want under several policies is looked for as the most eager says.
func (p *Project) Images() []Image {
	images := map[string]Image{}
	for _, s := range p.Services {
		image := s.ImageOf()
		if other, ok := images[image.Key()]; ok && other.Policy.eagerness() > image.Policy.eagerness() {
			image.Policy = other.Policy
		}
		images[image.Key()] = image
	}
	sorted := make([]Image, 0, len(images))
	for _, key := range slices.Sorted(maps.Keys(images)) {
		sorted = append(sorted, images[key])
	}
	return sorted
}

func (p PullPolicy) eagerness() int {
	return slices.Index([]PullPolicy{PullNever, PullMissing, PullAlways}, p)
}

func (p *Project) names() []string {
	names := make([]string, 0, len(p.Services))
	for name := range p.Services {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
