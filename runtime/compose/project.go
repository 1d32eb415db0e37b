package compose

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
)

// Project is a Compose project that this runtime supports entirely.
type Project struct {
	Name       string
	WorkingDir string // holds the Compose file; relative paths start here
	// Services by name, with everything resolved, without those of inactive profiles.
	Services map[string]*Service
	Networks map[string]*Network // by key, those that services are on
	Volumes  map[string]*Volume  // by Name, those that services mount
	// Compose is the model that Services was taken from.
	Compose *types.Project
	// Outside are the files read outside of WorkingDir, sorted, links resolved; none with Strict.
	Outside []string
	// Warnings are about unset variables, and keys that are obsolete or meaningless on a device.
	Warnings []string
	// Unused are the Environment variables and Ports of Options without an effect.
	Unused map[string]bool
}

// Service is a service as this runtime runs it: a container has nothing beyond this. Its
// JSON is hashed (ConfigHash): names, omission when empty and the order within fields must
// not change. The tag key is the name of the field in a Compose file; "" if changes of it are
// reported elsewhere or concern no user. The tag ask, on the types of its fields as well,
// says what a field asks of the device beneath the container: "device": something for the
// site's rules to judge, as nothing else is; "own": only what belongs to the container and
// its project, such as the networks of this runtime; "bound": a bound on its use, which the
// device's resources bound as well; "when": it concerns when the service runs; "less": it
// restricts another field.
type Service struct {
	Name          string            `json:"service" key:"" ask:"own"`
	ContainerName string            `json:"containerName,omitempty" key:"container_name" ask:"own"` // a name for people; nothing resolves it
	Image         string            `json:"image" key:"" ask:"device"`                              // normalised: docker.io/library/nginx:latest
	Platform      string            `json:"platform,omitempty" key:"platform" ask:"own"`            // as linux/arm/v7; empty: that of the device
	PullPolicy    PullPolicy        `json:"pullPolicy" key:"pull_policy" ask:"when"`
	Replicas      int               `json:"replicas" key:"deploy.replicas" ask:"device"` // 0: none run
	Labels        map[string]string `json:"labels,omitempty" key:"labels" ask:"own"`
	Annotations   map[string]string `json:"annotations,omitempty" key:"annotations" ask:"own"`

	// Entrypoint and Command replace the image's; nil: as in the image, empty: none.
	Entrypoint  []string          `json:"entrypoint,omitzero" key:"entrypoint" ask:"own"`
	Command     []string          `json:"command,omitzero" key:"command" ask:"own"`
	Environment map[string]string `json:"environment,omitempty" key:"" ask:"own"`
	WorkingDir  string            `json:"workingDir,omitempty" key:"working_dir" ask:"own"` // empty: as in the image
	User        string            `json:"user,omitempty" key:"user" ask:"own"`              // user[:group], names or numbers; empty: as in the image
	Groups      []string          `json:"groups,omitempty" key:"group_add" ask:"own"`       // further groups, names or numbers
	Hostname    string            `json:"hostname,omitempty" key:"hostname" ask:"own"`      // empty: the name of the service
	Domainname  string            `json:"domainname,omitempty" key:"domainname" ask:"own"`
	TTY         bool              `json:"tty,omitempty" key:"tty" ask:"own"`
	StdinOpen   bool              `json:"stdinOpen,omitempty" key:"stdin_open" ask:"own"`
	Init        bool              `json:"init,omitempty" key:"init" ask:"own"` // a small process 1 that buries orphans
	PID         Namespace         `json:"pid,omitzero" key:"pid" ask:"device"`
	IPC         Namespace         `json:"ipc,omitzero" key:"ipc" ask:"device"` // with ModeShareable: others may join it
	UTS         Namespace         `json:"uts,omitzero" key:"uts" ask:"device"`
	Cgroup      Namespace         `json:"cgroup,omitzero" key:"cgroup" ask:"device"`
	Sysctls     map[string]string `json:"sysctls,omitempty" key:"sysctls" ask:"own"`
	Ulimits     []Ulimit          `json:"ulimits,omitempty" key:"ulimits" ask:"bound"` // sorted by name
	OOMScoreAdj *int              `json:"oomScoreAdj,omitempty" key:"oom_score_adj" ask:"bound"`

	Resources   Resources `json:"resources,omitzero" key:"resources" ask:"device"`
	Devices     []Device  `json:"devices,omitempty" key:"devices" ask:"device"`
	DeviceRules []string  `json:"deviceRules,omitempty" key:"device_cgroup_rules" ask:"device"` // "c 188:* rwm"
	CDI         []string  `json:"cdi,omitempty" key:"gpus" ask:"device"`                        // vendor.com/class=name, also from gpus and reservations

	Mounts   []Mount `json:"mounts,omitempty" key:"volumes" ask:"device"`            // in order of their targets
	Tmpfs    []Tmpfs `json:"tmpfs,omitempty" key:"tmpfs" ask:"bound"`                // in order of their targets
	Files    []File  `json:"files,omitempty" key:"configs and secrets" ask:"device"` // configs and secrets, in order of their targets
	ShmSize  int64   `json:"shmSize,omitempty" key:"shm_size" ask:"bound"`           // bytes; 0: 64 MiB
	ReadOnly bool    `json:"readOnly,omitempty" key:"read_only" ask:"less"`          // the root file system

	Network    Namespace     `json:"network,omitzero" key:"network_mode" ask:"device"` // ModePrivate: the networks below
	Attached   []Attachment  `json:"attached,omitempty" key:"networks" ask:"device"`   // the first has the default route
	ExtraHosts []ExtraHost   `json:"extraHosts,omitempty" key:"extra_hosts" ask:"own"` // sorted
	Links      []ServiceName `json:"links,omitempty" key:"links" ask:"own"`            // further names for other services, sorted
	DNS        []netip.Addr  `json:"dns,omitempty" key:"dns" ask:"own"`
	DNSSearch  []string      `json:"dnsSearch,omitempty" key:"dns_search" ask:"own"`
	DNSOptions []string      `json:"dnsOptions,omitempty" key:"dns_opt" ask:"own"`
	Ports      []Port        `json:"ports,omitempty" key:"ports" ask:"device"` // sorted

	CapAdd          []string `json:"capAdd,omitempty" key:"cap_add" ask:"device"` // as CAP_NET_ADMIN, or ALL
	CapDrop         []string `json:"capDrop,omitempty" key:"cap_drop" ask:"less"`
	Privileged      bool     `json:"privileged,omitempty" key:"privileged" ask:"device"`
	NoNewPrivileges bool     `json:"noNewPrivileges,omitempty" key:"security_opt" ask:"less"`
	Seccomp         Seccomp  `json:"seccomp,omitzero" key:"security_opt" ask:"device"`
	AppArmor        string   `json:"appArmor,omitempty" key:"security_opt" ask:"device"`      // profile; empty: as the device has it, "unconfined": none
	UnmaskedPaths   bool     `json:"unmaskedPaths,omitempty" key:"security_opt" ask:"device"` // security_opt systempaths=unconfined

	DependsOn   []Dependency   `json:"dependsOn,omitempty" key:"depends_on" ask:"when"` // sorted by service
	Restart     Restart        `json:"restart" key:"restart" ask:"when"`
	StopSignal  string         `json:"stopSignal,omitempty" key:"stop_signal" ask:"when"`      // empty: as in the image
	StopGrace   *time.Duration `json:"stopGrace,omitempty" key:"stop_grace_period" ask:"when"` // nil: 10 s
	Healthcheck *Healthcheck   `json:"healthcheck,omitempty" key:"healthcheck" ask:"own"`      // nil: as in the image
	PostStart   []Hook         `json:"postStart,omitempty" key:"post_start" ask:"device"`
	PreStop     []Hook         `json:"preStop,omitempty" key:"pre_stop" ask:"device"`
	Logging     Logging        `json:"logging,omitzero" key:"logging" ask:"bound"`
}

// PullPolicy says when an image is looked up in its registry.
type PullPolicy string

// The pull policies. A staged image of a deployment is never looked up again.
const (
	PullMissing PullPolicy = "missing"
	PullAlways  PullPolicy = "always"
	PullNever   PullPolicy = "never"
)

// NamespaceMode says whose namespace a container lives in.
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

// Namespace is a mode and, if it joins another's, which.
type Namespace struct {
	Mode NamespaceMode `json:"mode,omitempty" ask:"device"`
	Of   string        `json:"of,omitempty" ask:"device"`
}

// Ulimit is a resource limit of a process; -1 is no limit.
type Ulimit struct {
	Name string `json:"name" ask:"bound"` // as nofile
	Soft int64  `json:"soft" ask:"bound"`
	Hard int64  `json:"hard" ask:"bound"`
}

// Resources bound what a container may use. Zero is no limit, unless stated otherwise.
type Resources struct {
	Memory            int64         `json:"memory,omitempty" ask:"bound"`             // bytes
	MemoryReservation int64         `json:"memoryReservation,omitempty" ask:"device"` // bytes
	MemorySwap        int64         `json:"memorySwap,omitempty" ask:"bound"`         // memory and swap together in bytes; -1: no limit
	Swappiness        *uint64       `json:"swappiness,omitempty" ask:"bound"`         // 0 to 100
	OOMKillDisable    bool          `json:"oomKillDisable,omitempty" ask:"bound"`
	NanoCPUs          int64         `json:"nanoCPUs,omitempty" ask:"bound"` // billionths of a CPU
	CPUReservation    int64         `json:"-" ask:"device"`                 // the same; for those who share the device out, no container changes with it
	CPUShares         uint64        `json:"cpuShares,omitempty" ask:"bound"`
	CPUPeriod         uint64        `json:"cpuPeriod,omitempty" ask:"bound"` // microseconds
	CPUQuota          int64         `json:"cpuQuota,omitempty" ask:"bound"`  // microseconds
	CPUSet            string        `json:"cpuSet,omitempty" ask:"bound"`    // 0-3,5
	Pids              int64         `json:"pids,omitempty" ask:"bound"`      // -1: no limit
	BlkioWeight       uint16        `json:"blkioWeight,omitempty" ask:"bound"`
	BlkioDevices      []BlkioDevice `json:"blkioDevices,omitempty" ask:"bound"` // sorted by path
	CgroupParent      string        `json:"cgroupParent,omitempty" ask:"bound"`
}

// BlkioDevice is a limit for a block device.
type BlkioDevice struct {
	Path      string `json:"path" ask:"bound"`
	Weight    uint16 `json:"weight,omitempty" ask:"bound"`
	ReadBPS   uint64 `json:"readBPS,omitempty" ask:"bound"`
	WriteBPS  uint64 `json:"writeBPS,omitempty" ask:"bound"`
	ReadIOPS  uint64 `json:"readIOPS,omitempty" ask:"bound"`
	WriteIOPS uint64 `json:"writeIOPS,omitempty" ask:"bound"`
}

// Device is a host device node, or a directory of them, in a container.
type Device struct {
	Path        string `json:"path" ask:"device"`           // on the device
	Real        string `json:"real,omitempty" ask:"device"` // where it led when the project was loaded, which is not hashed; for those who open it
	Target      string `json:"target" ask:"own"`            // in the container
	Permissions string `json:"permissions" ask:"less"`      // of r, w, m
}

// Mount is a named or anonymous volume, a host path or a part of an image in a container.
// Exactly one of Volume, Anonymous and Path is set.
type Mount struct {
	Volume string `json:"volume,omitempty" ask:"device"` // name of the volume within the project
	Path   string `json:"path,omitempty" ask:"device"`   // absolute, cleaned path on the device
	Real   string `json:"-" ask:"device"`                // Path: where it led when the project was loaded; for those who mount
	Target string `json:"target" ask:"own"`              // absolute, cleaned path in the container

	// In the order of the hash.
	ReadOnly    bool   `json:"readOnly,omitempty" ask:"device"`
	Create      bool   `json:"create,omitempty" ask:"own"`      // Path: make a directory there if it is missing
	Propagation string `json:"propagation,omitempty" ask:"own"` // Path: private, rslave, ...; empty: rprivate
	NoCopy      bool   `json:"noCopy,omitempty" ask:"own"`      // a volume: leave a new one empty instead of filling it from the image
	Anonymous   bool   `json:"anonymous,omitempty" ask:"own"`   // a volume without a name, which belongs to replica and target
	Of          string `json:"of,omitempty" ask:"own"`          // Anonymous: the service whose volume it is (volumes_from), that of its first replica; empty: this one
	NotBelow    bool   `json:"notBelow,omitempty" ask:"less"`   // Path: without what is mounted below it (bind.recursive: disabled)
	Subpath     string `json:"subpath,omitempty" ask:"less"`    // a volume: only this directory of it
	Below       string `json:"below,omitempty" ask:"device"`    // ReadOnly: what that means for what is mounted below it (bind.recursive)
}

// Values of Mount.Below; empty: read-only too, if the kernel supports it.
const (
	BelowReadOnly = "readonly" // read-only too, or the container is not made
	BelowWritable = "writable" // as it is on the device
)

// Tmpfs is a file system in memory.
type Tmpfs struct {
	Target  string   `json:"target" ask:"own"`
	Options []string `json:"options,omitempty" ask:"bound"` // mount options as given, checked and sorted: "noexec", "size=64m", ...
}

// Volume is a named volume.
type Volume struct {
	Name     string   `json:"name" ask:"device"`               // within the project; of an external one: its whole name
	External bool     `json:"external,omitempty" ask:"device"` // made by another project
	Type     string   `json:"type,omitempty" ask:"device"`     // of a file system to be mounted: nfs, cifs, tmpfs, none (a bind); empty: a directory of ours
	Device   string   `json:"device,omitempty" ask:"device"`   // of Type
	Real     string   `json:"-" ask:"device"`                  // where Device led when the project was loaded; for those who mount it
	Options  []string `json:"options,omitempty" ask:"device"`  // of Type, as mount -o takes them
}

// File is a config or a secret as a file in a container.
type File struct {
	Secret  bool   `json:"secret,omitempty" ask:"own"`
	Name    string `json:"-" ask:"own"`      // of the config or secret
	Target  string `json:"target" ask:"own"` // absolute path in the container
	UID     uint32 `json:"uid,omitempty" ask:"own"`
	GID     uint32 `json:"gid,omitempty" ask:"own"`
	Mode    uint32 `json:"mode" ask:"own"` // permission bits
	Content []byte `json:"-" ask:"device"` // at most 1 MiB
}

// Network is a network of the project.
type Network struct {
	// Name is the name on the device, for sharing: <project>_<key> unless the file sets another.
	Name     string            `json:"name" ask:"device"`
	External bool              `json:"external,omitempty" ask:"device"` // another project defines it
	Driver   string            `json:"driver" ask:"device"`             // bridge, macvlan or ipvlan; empty: External
	Options  map[string]string `json:"options,omitempty" ask:"own"`     // as Docker names them, checked: see networkOptions
	Internal bool              `json:"internal,omitempty" ask:"less"`   // without a way out
	IPv6     bool              `json:"ipv6,omitempty" ask:"own"`
	NoIPv4   bool              `json:"noIPv4,omitempty" ask:"less"`
	Pools    []Pool            `json:"pools,omitempty" ask:"own"` // at most one of each family
}

// Pool is the address range of a network; zero values are chosen.
type Pool struct {
	Subnet  netip.Prefix          `json:"subnet,omitzero" ask:"own"`
	Gateway netip.Addr            `json:"gateway,omitzero" ask:"own"`
	Range   netip.Prefix          `json:"range,omitzero" ask:"own"` // within Subnet
	Taken   map[string]netip.Addr `json:"taken,omitempty" ask:"own"`
}

// Attachment puts a service on a network.
type Attachment struct {
	Network   string       `json:"network" ask:"device"` // key
	Aliases   []string     `json:"aliases,omitempty" ask:"own"`
	IPv4      netip.Addr   `json:"ipv4,omitzero" ask:"own"`       // zero: chosen
	IPv6      netip.Addr   `json:"ipv6,omitzero" ask:"own"`       // zero: chosen, where the network has IPv6
	LinkLocal []netip.Addr `json:"linkLocal,omitempty" ask:"own"` // further addresses
	MAC       string       `json:"mac,omitempty" ask:"own"`       // empty: derived from the address
	Interface string       `json:"interface,omitempty" ask:"own"` // name in the container; empty: eth0, eth1, ...
	Priority  int          `json:"-" ask:"own"`                   // the highest comes first
	Gateway   int          `json:"-" ask:"own"`                   // gw_priority: the highest has the default route
	Sysctls   []string     `json:"sysctls,omitempty" ask:"own"`   // driver_opts com.docker.network.endpoint.sysctls: net.ipv4.conf.IFNAME.x=1
}

// ExtraHost is a line in the hosts file.
type ExtraHost struct {
	Name    string     `json:"name" ask:"own"`
	Address netip.Addr `json:"address,omitzero" ask:"own"` // zero: the device itself (host-gateway)
}

// ServiceName is an alias for another service, known to one service only.
type ServiceName struct {
	Service string `json:"service" ask:"own"`
	Name    string `json:"name" ask:"own"`
}

// Port is a published port of a container.
type Port struct {
	HostIP netip.Addr `json:"hostIP,omitzero" ask:"less"` // the zero value: every address of the device, of the families that the network has
	// The first free host port from HostPort to LastPort is used; both 0: any.
	HostPort      uint16 `json:"hostPort" ask:"device"`
	LastPort      uint16 `json:"lastPort,omitempty" ask:"device"` // 0: HostPort and no other
	ContainerPort uint16 `json:"containerPort" ask:"own"`
	Protocol      string `json:"protocol" ask:"less"` // tcp, udp or sctp
}

// Seccomp is a system call filter.
type Seccomp struct {
	Unconfined bool   `json:"unconfined,omitempty" ask:"device"`
	Profile    []byte `json:"profile,omitempty" ask:"device"` // in Docker's JSON form; nil: the default profile
}

// Condition is the state that a dependency must reach.
type Condition string

const (
	ConditionStarted   Condition = "service_started"
	ConditionHealthy   Condition = "service_healthy"
	ConditionCompleted Condition = "service_completed_successfully"
)

// Dependency is a service that another one needs before it starts.
type Dependency struct {
	Service   string    `json:"service" ask:"when"`
	Condition Condition `json:"condition" ask:"when"`
	Required  bool      `json:"required" ask:"when"`          // false: a failure of it is passed over
	Restart   bool      `json:"restart,omitempty" ask:"when"` // start again when it is replaced
}

// RestartMode says when an ended container is restarted.
type RestartMode string

const (
	RestartNo            RestartMode = "no"
	RestartAlways        RestartMode = "always"
	RestartOnFailure     RestartMode = "on-failure"
	RestartUnlessStopped RestartMode = "unless-stopped"
)

// Restart is when a container is restarted after it ended by itself.
type Restart struct {
	Mode       RestartMode   `json:"policy" ask:"when"`
	MaxRetries int           `json:"max,omitempty" ask:"when"`    // attempts in a row with on-failure; 0: no bound
	Delay      time.Duration `json:"delay,omitempty" ask:"when"`  // the least delay before an attempt; 0: chosen
	Window     time.Duration `json:"window,omitempty" ask:"when"` // what runs that long starts with a clean record; 0: 10 s
}

// OneShot tells whether a container that ended with 0 is done.
func (r Restart) OneShot() bool { return r.Mode == RestartNo || r.Mode == RestartOnFailure }

// After tells whether a container that ended with code, after failures in a row, is restarted.
func (r Restart) After(code, failures int) bool {
	switch r.Mode {
	case RestartAlways, RestartUnlessStopped: // a stopped container is also deleted
		return true
	case RestartOnFailure:
		return code != 0 && (r.MaxRetries == 0 || failures < r.MaxRetries)
	default:
		return false
	}
}

// Healthcheck is the health check of a service. Zero values are the image's, else Compose's.
type Healthcheck struct {
	Test          []string      `json:"test,omitempty" ask:"own"` // as CMD, CMD-SHELL or NONE with what follows
	Interval      time.Duration `json:"interval,omitempty" ask:"when"`
	Timeout       time.Duration `json:"timeout,omitempty" ask:"when"`
	StartPeriod   time.Duration `json:"startPeriod,omitempty" ask:"when"`
	StartInterval time.Duration `json:"startInterval,omitempty" ask:"when"`
	Retries       int           `json:"retries,omitempty" ask:"when"`
}

// Hook is a command that runs in a container after its start or before its stop.
type Hook struct {
	Command     []string          `json:"command" ask:"own"`
	User        string            `json:"user,omitempty" ask:"own"`
	Privileged  bool              `json:"privileged,omitempty" ask:"device"`
	WorkingDir  string            `json:"workingDir,omitempty" ask:"own"`
	Environment map[string]string `json:"environment,omitempty" ask:"own"`
}

// Logging is how much of the output is kept. Zero values are chosen.
type Logging struct {
	None    bool  `json:"none,omitempty" ask:"bound"`    // nothing is kept
	MaxSize int64 `json:"maxSize,omitempty" ask:"bound"` // bytes of one file
	MaxFile int   `json:"maxFile,omitempty" ask:"bound"`
}

// Order returns the service names in dependency order, independent ones by name.
func (p *Project) Order() []string {
	order, _ := p.order(p.names()) // Load refuses circles
	return order
}

func (p *Project) order(names []string) (order []string, circles [][]string) {
	dependsOn := make(map[string][]Dependency)
	for name, s := range p.Services {
		dependsOn[name] = s.DependsOn
	}
	return InOrder(names, dependsOn)
}

// InOrder sorts services after their dependencies, and finds the circles among them.
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

// Key identifies an image within a project.
func (i Image) Key() string {
	if i.Platform == "" {
		return i.Ref
	}
	return i.Ref + " (" + i.Platform + ")"
}

// ImageOf returns the image of a service.
func (s *Service) ImageOf() Image {
	return Image{Ref: s.Image, Platform: s.Platform, Policy: s.PullPolicy}
}

// Images returns the services' images, by key, each once and with its most eager pull policy.
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
