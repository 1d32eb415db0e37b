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
// not hold, a container cannot have. Its JSON is hashed (ConfigHash): the names and
// what is left out when empty must not change, nor the order within its fields.
// The tag key is what people call a field in a Compose file; "" says that a change
// of it is told in another way, or concerns nobody.
type Service struct {
	Name          string            `json:"service" key:""`
	ContainerName string            `json:"containerName,omitempty" key:"container_name"` // a name for people; nothing resolves it
	Image         string            `json:"image" key:""`                                 // normalised: docker.io/library/nginx:latest
	Platform      string            `json:"platform,omitempty" key:"platform"`            // as linux/arm/v7; empty: that of the device
	PullPolicy    PullPolicy        `json:"pullPolicy" key:"pull_policy"`
	Replicas      int               `json:"replicas" key:"deploy.replicas"` // 0: none run
	Labels        map[string]string `json:"labels,omitempty" key:"labels"`
	Annotations   map[string]string `json:"annotations,omitempty" key:"annotations"`

	// Entrypoint and Command replace those of the image; nil: as in the image,
	// empty: none.
	Entrypoint  []string          `json:"entrypoint,omitzero" key:"entrypoint"`
	Command     []string          `json:"command,omitzero" key:"command"`
	Environment map[string]string `json:"environment,omitempty" key:""`
	WorkingDir  string            `json:"workingDir,omitempty" key:"working_dir"` // empty: as in the image
	User        string            `json:"user,omitempty" key:"user"`              // user[:group], names or numbers; empty: as in the image
	Groups      []string          `json:"groups,omitempty" key:"group_add"`       // further groups, names or numbers
	Hostname    string            `json:"hostname,omitempty" key:"hostname"`      // empty: the name of the service
	Domainname  string            `json:"domainname,omitempty" key:"domainname"`
	TTY         bool              `json:"tty,omitempty" key:"tty"`
	StdinOpen   bool              `json:"stdinOpen,omitempty" key:"stdin_open"`
	Init        bool              `json:"init,omitempty" key:"init"` // a small process 1 that buries orphans
	PID         Namespace         `json:"pid,omitzero" key:"pid"`
	IPC         Namespace         `json:"ipc,omitzero" key:"ipc"` // with ModeShareable: others may join it
	UTS         Namespace         `json:"uts,omitzero" key:"uts"`
	Cgroup      Namespace         `json:"cgroup,omitzero" key:"cgroup"`
	Sysctls     map[string]string `json:"sysctls,omitempty" key:"sysctls"`
	Ulimits     []Ulimit          `json:"ulimits,omitempty" key:"ulimits"` // sorted by name
	OOMScoreAdj *int              `json:"oomScoreAdj,omitempty" key:"oom_score_adj"`

	Resources   Resources `json:"resources,omitzero" key:"resources"`
	Devices     []Device  `json:"devices,omitempty" key:"devices"`
	DeviceRules []string  `json:"deviceRules,omitempty" key:"device_cgroup_rules"` // "c 188:* rwm"
	CDI         []string  `json:"cdi,omitempty" key:"gpus"`                        // vendor.com/class=name, also from gpus and reservations

	Mounts   []Mount `json:"mounts,omitempty" key:"volumes"`            // in order of their targets
	Tmpfs    []Tmpfs `json:"tmpfs,omitempty" key:"tmpfs"`               // in order of their targets
	Files    []File  `json:"files,omitempty" key:"configs and secrets"` // configs and secrets, in order of their targets
	ShmSize  int64   `json:"shmSize,omitempty" key:"shm_size"`          // bytes; 0: 64 MiB
	ReadOnly bool    `json:"readOnly,omitempty" key:"read_only"`        // the root file system

	Network    Namespace     `json:"network,omitzero" key:"network_mode"`    // ModePrivate: the networks below
	Attached   []Attachment  `json:"attached,omitempty" key:"networks"`      // the first has the default route
	ExtraHosts []ExtraHost   `json:"extraHosts,omitempty" key:"extra_hosts"` // sorted
	Links      []ServiceName `json:"links,omitempty" key:"links"`            // further names for other services, sorted
	DNS        []netip.Addr  `json:"dns,omitempty" key:"dns"`
	DNSSearch  []string      `json:"dnsSearch,omitempty" key:"dns_search"`
	DNSOptions []string      `json:"dnsOptions,omitempty" key:"dns_opt"`
	Ports      []Port        `json:"ports,omitempty" key:"ports"` // sorted

	CapAdd          []string `json:"capAdd,omitempty" key:"cap_add"` // as CAP_NET_ADMIN, or ALL
	CapDrop         []string `json:"capDrop,omitempty" key:"cap_drop"`
	Privileged      bool     `json:"privileged,omitempty" key:"privileged"`
	NoNewPrivileges bool     `json:"noNewPrivileges,omitempty" key:"security_opt"`
	Seccomp         Seccomp  `json:"seccomp,omitzero" key:"security_opt"`
	AppArmor        string   `json:"appArmor,omitempty" key:"security_opt"`      // profile; empty: as the device has it, "unconfined": none
	UnmaskedPaths   bool     `json:"unmaskedPaths,omitempty" key:"security_opt"` // security_opt systempaths=unconfined

	DependsOn   []Dependency   `json:"dependsOn,omitempty" key:"depends_on"` // sorted by service
	Restart     Restart        `json:"restart" key:"restart"`
	StopSignal  string         `json:"stopSignal,omitempty" key:"stop_signal"`      // empty: as in the image
	StopGrace   *time.Duration `json:"stopGrace,omitempty" key:"stop_grace_period"` // nil: 10 s
	Healthcheck *Healthcheck   `json:"healthcheck,omitempty" key:"healthcheck"`     // nil: as in the image
	PostStart   []Hook         `json:"postStart,omitempty" key:"post_start"`
	PreStop     []Hook         `json:"preStop,omitempty" key:"pre_stop"`
	Logging     Logging        `json:"logging,omitzero" key:"logging"`
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

// Device is a device node of the device in the container, or a directory of them.
type Device struct {
	Path        string `json:"path"`           // on the device
	Real        string `json:"real,omitempty"` // where it led when the project was loaded, which is not hashed; for those who open it
	Target      string `json:"target"`         // in the container
	Permissions string `json:"permissions"`    // of r, w, m
}

// Mount is a named volume, an anonymous one, a path of the device or a part of
// an image in a container. Exactly one of Volume, Anonymous and Path is set.
type Mount struct {
	Volume string `json:"volume,omitempty"` // name of the volume within the project
	Path   string `json:"path,omitempty"`   // absolute, cleaned path on the device
	Real   string `json:"-"`                // Path: where it led when the project was loaded; for those who mount
	Target string `json:"target"`           // absolute, cleaned path in the container

	// In the order that they are hashed in.
	ReadOnly    bool   `json:"readOnly,omitempty"`
	Create      bool   `json:"create,omitempty"`      // Path: make a directory there when nothing is there
	Propagation string `json:"propagation,omitempty"` // Path: private, rslave, ...; empty: rprivate
	NoCopy      bool   `json:"noCopy,omitempty"`      // a volume: leave a new one empty instead of filling it from the image
	Anonymous   bool   `json:"anonymous,omitempty"`   // a volume without a name, which belongs to replica and target
	Of          string `json:"of,omitempty"`          // Anonymous: the service whose volume it is (volumes_from), that of its first replica; empty: this one
	NotBelow    bool   `json:"notBelow,omitempty"`    // Path: without what is mounted below it (bind.recursive: disabled)
	Subpath     string `json:"subpath,omitempty"`     // a volume: only this directory of it
	Below       string `json:"below,omitempty"`       // ReadOnly: what that means for what is mounted below it (bind.recursive)
}

// What Mount.Below may be; empty: read-only too, where the kernel can.
const (
	BelowReadOnly = "readonly" // read-only too, or the container is not made
	BelowWritable = "writable" // as it is on the device
)

// Tmpfs is a file system in memory.
type Tmpfs struct {
	Target  string   `json:"target"`
	Options []string `json:"options,omitempty"` // mount options as given, checked and sorted: "noexec", "size=64m", ...
}

// Volume is a named volume.
type Volume struct {
	Name     string   `json:"name"`               // within the project; of an external one: its whole name
	External bool     `json:"external,omitempty"` // made by another project
	Type     string   `json:"type,omitempty"`     // of a file system to be mounted: nfs, cifs, tmpfs, none (a bind); empty: a directory of ours
	Device   string   `json:"device,omitempty"`   // of Type
	Real     string   `json:"-"`                  // where Device led when the project was loaded; for those who mount it
	Options  []string `json:"options,omitempty"`  // of Type, as mount -o takes them
}

// File is a config or a secret as a file in a container.
type File struct {
	Secret  bool   `json:"secret,omitempty"`
	Name    string `json:"-"`      // of the config or secret
	Target  string `json:"target"` // absolute path in the container
	UID     uint32 `json:"uid,omitempty"`
	GID     uint32 `json:"gid,omitempty"`
	Mode    uint32 `json:"mode"` // permission bits
	Content []byte `json:"-"`    // at most 1 MiB
}

// Network is a network that services of the project are on.
type Network struct {
	// Name is the network's name on the device, by which projects share one:
	// <project>_<key>, unless the file gives another.
	Name     string            `json:"name"`
	External bool              `json:"external,omitempty"` // another project defines it
	Driver   string            `json:"driver"`             // bridge, macvlan or ipvlan; empty: External
	Options  map[string]string `json:"options,omitempty"`  // as Docker names them, checked: see networkOptions
	Internal bool              `json:"internal,omitempty"` // without a way out
	IPv6     bool              `json:"ipv6,omitempty"`
	NoIPv4   bool              `json:"noIPv4,omitempty"`
	Pools    []Pool            `json:"pools,omitempty"` // at most one of each family
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
	HostIP netip.Addr `json:"hostIP,omitzero"` // the zero value: every address of the device, of the families that the network has
	// HostPort to LastPort are the ports of the device of which one is taken,
	// the first that is free; both 0: any.
	HostPort      uint16 `json:"hostPort"`
	LastPort      uint16 `json:"lastPort,omitempty"` // 0: HostPort and no other
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp or sctp
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

// Restart is when a container is started again after it ended by itself.
type Restart struct {
	Mode       RestartMode   `json:"policy"`
	MaxRetries int           `json:"max,omitempty"`    // attempts in a row with on-failure; 0: no bound
	Delay      time.Duration `json:"delay,omitempty"`  // the least delay before an attempt; 0: chosen
	Window     time.Duration `json:"window,omitempty"` // what runs that long starts with a clean record; 0: 10 s
}

// OneShot tells whether a container that ends with 0 is done, and not to be started again.
func (r Restart) OneShot() bool { return r.Mode == RestartNo || r.Mode == RestartOnFailure }

// After tells whether a container that ended with code is to be started again,
// when it already was failures times in a row.
func (r Restart) After(code, failures int) bool {
	switch r.Mode {
	case RestartAlways, RestartUnlessStopped: // what is stopped here is also deleted
		return true
	case RestartOnFailure:
		return code != 0 && (r.MaxRetries == 0 || failures < r.MaxRetries)
	default:
		return false
	}
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
	order, _ := p.order(p.names()) // Load refuses circles
	return order
}

// order is that of the named services and all that they depend on.
func (p *Project) order(names []string) (order []string, circles [][]string) {
	dependsOn := make(map[string][]Dependency)
	for name, s := range p.Services {
		dependsOn[name] = s.DependsOn
	}
	return InOrder(names, dependsOn)
}

// InOrder puts services after those that they depend on, and finds the circles among them.
func InOrder(services []string, dependsOn map[string][]Dependency) (order []string, circles [][]string) {
	done := map[string]bool{} // false: being visited
	var visit func(name string, way []string)
	visit = func(name string, way []string) {
		way = append(way, name)
		switch visited, begun := done[name]; {
		case visited:
			return
		case begun:
			circles = append(circles, slices.Clone(way[slices.Index(way, name):]))
			return
		}
		done[name] = false
		for _, dependency := range dependsOn[name] {
			visit(dependency.Service, way)
		}
		done[name] = true
		order = append(order, name)
	}
	for _, name := range services {
		visit(name, nil)
	}
	return order, circles
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

func (p *Project) names() []string { return slices.Sorted(maps.Keys(p.Services)) }
