package policy_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/test/expect"
)

// admit judges one service by the default rules, as changed, and gives a line for
// each refusal.
func admit(t *testing.T, change func(*policy.Allow), s policy.ServiceAsk, ask policy.Ask) []string {
	t.Helper()
	allow := policy.DefaultAllow()
	if change != nil {
		change(&allow)
	}
	ask.Services = append([]policy.ServiceAsk{s}, ask.Services...)
	var lines []string
	for _, r := range policy.New(policy.Options{Allow: allow}).Admit(idA, ask) {
		lines = append(lines, strings.TrimPrefix(r.Rule, "policy.allow.")+": "+r.Text)
	}
	return lines
}

func TestOrdinaryServicesComeIn(t *testing.T) {
	mounts := []string{
		"/opt/app", "/home/pi/data", "/data", "/mnt/disk/x", "/srv", "/media", "/tmp", "/var/log", "/var/tmp/x", "/var/cache/app",
		"/dev/shm", "/dev/serial/by-id", "/dev/dri", "/dev/ttyS0", "/run/dbus", "/run/dbus/system_bus_socket", "/var/run/dbus",
		"/run/udev", "/run/user/1000/pulse", "/run/app.sock", "/run/systemd/journal/socket", "/libs", "/etcetera", "/rootless",
	}
	readOnly := []string{
		"/etc/localtime", "/etc/timezone", "/etc/ssl/certs", "/etc/ssl/certs/ca.pem", "/etc/machine-id", "/etc/hostname",
		"/etc/os-release", "/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/group", "/usr/share/zoneinfo/Europe/Berlin",
		"/usr/lib/os-release", "/lib/modules", "/run/systemd/resolve/resolv.conf",
	}
	s := policy.ServiceAsk{
		Component: "c", Service: "web",
		Namespaces: []string{"network", "uts", "cgroup"},
		Devices: []string{
			"/dev/ttyS0", "/dev/ttyUSB0", "/dev/ttyACM1", "/dev/serial/by-id/usb-1", "/dev/dri", "/dev/dri/renderD128", "/dev/video0",
			"/dev/snd", "/dev/i2c-1", "/dev/spidev0.0", "/dev/gpiochip0", "/dev/bus/usb", "/dev/bus/usb/001/002", "/dev/kvm", "/dev/fuse",
			"/dev/net/tun", "/dev/input", "/dev/null", "/dev/mei0", "/dev/hdmi_cec", "/dev/mdio",
			"nvidia.com/gpu=all", "vendor.com/class=x", "c 188:* rwm", "c 10:200 rw", "c 1:3 r",
		},
		Capabilities: []string{"NET_ADMIN", "CAP_NET_RAW", "SYS_TIME", "SYS_NICE", "IPC_LOCK", "CHOWN", "SYS_RESOURCE"},
		Ports:        []policy.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 65535}, {}},
		Image:        "docker.io/library/nginx:1", Registry: "docker.io",
		Reserved: policy.Resources{CPUs: 64, Memory: 1 << 40, Storage: 1 << 40}, // of a device that does not say what it has
	}
	for _, m := range mounts {
		s.Mounts = append(s.Mounts, policy.MountAsk{Path: m})
	}
	for _, m := range slices.Concat(mounts, readOnly) {
		s.Mounts = append(s.Mounts, policy.MountAsk{Path: m, ReadOnly: true})
	}
	s.Mounts = append(s.Mounts, policy.MountAsk{Path: "/run/margolite/locks/" + idA}, policy.MountAsk{Path: "/var/run/margolite/locks/" + idA + "/x"})
	got := admit(t, nil, s, policy.Ask{Own: []string{"/var/lib/margolite", "/run/margolite"}, Locks: "/run/margolite/locks"})
	expect.Equal(t, got, nil, "refusals")
}

func TestWhatTakesOverTheDeviceIsRefused(t *testing.T) {
	mount := func(path string) policy.ServiceAsk {
		return policy.ServiceAsk{Mounts: []policy.MountAsk{{Path: path}}}
	}
	read := func(path string) policy.ServiceAsk {
		return policy.ServiceAsk{Mounts: []policy.MountAsk{{Path: path, ReadOnly: true}}}
	}
	device := func(d string) policy.ServiceAsk { return policy.ServiceAsk{Devices: []string{d}} }
	capability := func(c string) policy.ServiceAsk { return policy.ServiceAsk{Capabilities: []string{c}} }
	for want, s := range map[string]policy.ServiceAsk{
		"privileged: is privileged":                               {Privileged: true},
		"namespaces.pid: joins the pid namespace of the device":   {Namespaces: []string{"network", "pid"}},
		"namespaces.ipc: joins the ipc namespace of the device":   {Namespaces: []string{"ipc"}},
		"namespaces.user: joins the user namespace of the device": {Namespaces: []string{"user"}},
		"unconfined.seccomp: switches seccomp off":                {Unconfined: []string{"seccomp"}},
		"unconfined.apparmor: switches apparmor off":              {Unconfined: []string{"apparmor"}},
		"unconfined.systempaths: switches systempaths off":        {Unconfined: []string{"systempaths"}},
		"unconfined.label: switches label off":                    {Unconfined: []string{"label"}},
		"shared: shares other_data with others":                   {Shared: []string{"other_data"}},

		"mounts[/]: mounts / as a whole":                                                                                           read("/"),
		"mounts[/etc]: mounts /etc":                                                                                                read("/etc"),
		"mounts[/etc/shadow]: mounts /etc/shadow, which is in /etc":                                                                read("/etc/shadow"),
		"mounts[/etc/localtime]: mounts /etc/localtime writable":                                                                   mount("/etc/localtime"),
		"mounts[/etc/ssl/certs/x]: mounts /etc/ssl/certs/x writable":                                                               mount("/etc/ssl/certs/x"),
		"mounts[/dev]: mounts /dev as a whole":                                                                                     mount("/dev"),
		"mounts[/run]: mounts /run as a whole":                                                                                     read("/run"),
		"mounts[/run]: mounts /var/run as a whole":                                                                                 mount("/var/run"),
		"mounts[/run/docker.sock]: mounts /run/docker.sock":                                                                        read("/run/docker.sock"),
		"mounts[/run/docker.sock]: mounts /var/run/docker.sock":                                                                    mount("/var/run/docker.sock"),
		"mounts[/var]: mounts /var, which contains /var/lib":                                                                       read("/var"),
		"mounts[/var/lib/app]: mounts /var/lib/app, which is in /var/lib":                                                          mount("/var/lib/app"),
		"mounts[/root/x]: mounts /opt/../root/x, which is in /root":                                                                mount("/opt/../root/x"),
		"mounts: mounts opt, which is not an absolute path":                                                                        mount("opt"),
		"mounts[/data]: mounts /data, which contains /data/margolite, the state of margolite":                                      mount("/data"),
		"mounts: mounts /data/margolite/volumes/x, where margolite keeps its own state; this is never allowed":                     read("/data/margolite/volumes/x"),
		"mounts: mounts /var/run/margolite/control.sock, where margolite keeps its own state; this is never allowed":               mount("/var/run/margolite/control.sock"),
		"mounts[/run/margolite/locks]: mounts /run/margolite/locks, whose locks hold up other deployments":                         mount("/run/margolite/locks"),
		"mounts[/run/margolite/locks]: mounts /var/run/margolite/locks, whose locks hold up other deployments":                     read("/var/run/margolite/locks"),
		"mounts[/run/margolite/locks/" + idB + "]: mounts /run/margolite/locks/" + idB + ", whose locks hold up other deployments": mount("/run/margolite/locks/" + idB),

		"devices[/dev/mem]: uses device /dev/mem":                                                device("/dev/mem"),
		"devices[/dev/sda1]: uses device /dev/sda1, which falls under /dev/sd*":                  device("/dev/sda1"),
		"devices[/dev/disk/by-id/x]: uses device /dev/disk/by-id/x, which falls under /dev/disk": device("/dev/disk/by-id/x"),
		"devices[/dev/cpu/0/msr]: uses device /dev/cpu/0/msr, which falls under /dev/cpu":        device("/dev/cpu/0/msr"),
		"devices[/dev]: uses device /dev, which falls under /":                                   device("/dev"),
		"devices[/dev/sdb]: uses device /dev/x/../sdb, which falls under /dev/sd*":               device("/dev/x/../sdb"),
		"devices[/data/node]: uses device /data/node, which falls under /":                       device("/data/node"),
		"devices[/]: uses device /":                                                              device("/"),
		"devices[a *:*]: uses device a *:* rwm":                                                  device("a *:* rwm"),
		"devices[b 8:*]: uses device b 8:* rwm, which falls under b *:*":                         device("b 8:* rwm"),
		"devices[b *:*]: uses device b *:* m":                                                    device("b *:* m"),
		"devices[c *:*]: uses device c *:* rwm, which contains c 1:1":                            device("c *:* rwm"),
		"devices[c 1:*]: uses device c 1:* r, which contains c 1:1":                              device("c 1:* r"),
		"devices[c *:2]: uses device c *:2 r, which contains c 1:2":                              device("c *:2 r"),
		"devices[c 1:1]: uses device c 001:01 r":                                                 device("c 001:01 r"),
		"devices[a 188:*]: uses device a 188:* rwm, which falls under b *:*":                     device("a 188:* rwm"),

		"capabilities[SYS_ADMIN]: adds capability SYS_ADMIN":   capability("CAP_SYS_ADMIN"),
		"capabilities[SYS_MODULE]: adds capability SYS_MODULE": capability("sys_module"),
		"capabilities.BPF: adds capability BPF":                capability("BPF"),
		"capabilities.ALL: adds capability ALL":                capability("ALL"),
	} {
		got := admit(t, nil, s, policy.Ask{Own: []string{"/data/margolite", "/run/margolite"}, Locks: "/run/margolite/locks"})
		expect.Equal(t, got, []string{want}, "refusals")
	}
}

// One line opens one thing, and what it is about shows which.
func TestOneLineOpensOrClosesOneThing(t *testing.T) {
	mount := func(path string, readOnly bool) policy.ServiceAsk {
		return policy.ServiceAsk{Mounts: []policy.MountAsk{{Path: path, ReadOnly: readOnly}}}
	}
	device := func(d string) policy.ServiceAsk { return policy.ServiceAsk{Devices: []string{d}} }
	capability := func(c string) policy.ServiceAsk { return policy.ServiceAsk{Capabilities: []string{c}} }
	publish := func(first, last uint16) policy.ServiceAsk {
		return policy.ServiceAsk{Ports: []policy.PortRange{{First: first, Last: last}}}
	}
	at := func(path string, access policy.MountAccess) func(*policy.Allow) {
		return func(a *policy.Allow) { a.Mounts[path] = access }
	}
	use := func(device string, allowed bool) func(*policy.Allow) {
		return func(a *policy.Allow) { a.Devices[device] = allowed }
	}
	add := func(name string, allowed bool) func(*policy.Allow) {
		return func(a *policy.Allow) { a.Capabilities[name] = allowed }
	}
	ports := func(p ...policy.PortRange) func(*policy.Allow) { return func(a *policy.Allow) { a.Ports = p } }
	for name, c := range map[string]struct {
		change func(*policy.Allow)
		ask    policy.ServiceAsk
		in     bool
	}{
		"privileged":                           {func(a *policy.Allow) { a.Privileged = true }, policy.ServiceAsk{Privileged: true}, true},
		"a namespace":                          {func(a *policy.Allow) { a.Namespaces["pid"] = true }, policy.ServiceAsk{Namespaces: []string{"pid"}}, true},
		"the network":                          {func(a *policy.Allow) { a.Namespaces["network"] = false }, policy.ServiceAsk{Namespaces: []string{"network"}}, false},
		"a profile":                            {func(a *policy.Allow) { a.Unconfined["seccomp"] = true }, policy.ServiceAsk{Unconfined: []string{"seccomp"}}, true},
		"another profile":                      {func(a *policy.Allow) { a.Unconfined["seccomp"] = true }, policy.ServiceAsk{Unconfined: []string{"apparmor"}}, false},
		"a path":                               {at("/var/lib/app", policy.MountAlways), mount("/var/lib/app", false), true},
		"what is below it":                     {at("/var/lib/app", policy.MountAlways), mount("/var/lib/app/data", false), true},
		"but not beside it":                    {at("/var/lib/app", policy.MountAlways), mount("/var/lib/apps", false), false},
		"nor above it":                         {at("/var/lib/app", policy.MountAlways), mount("/var/lib", false), false},
		"a directory by its own line":          {at("/var", policy.MountAlways), mount("/var", false), true},
		"which opens nothing in it":            {at("/var", policy.MountAlways), mount("/var/lib", false), false},
		"the root, for who reads":              {at("/", policy.MountReadOnly), mount("/", true), true},
		"and not for who writes":               {at("/", policy.MountReadOnly), mount("/", false), false},
		"nor what has a line of its own":       {at("/", policy.MountReadOnly), mount("/etc", true), false},
		"a path to read":                       {at("/sys", policy.MountReadOnly), mount("/sys/class/thermal", true), true},
		"not to write":                         {at("/sys", policy.MountReadOnly), mount("/sys/class/thermal", false), false},
		"what is in it, not all of it":         {at("/sys", policy.MountBelow), mount("/sys/class", false), true},
		"not all of it":                        {at("/sys", policy.MountBelow), mount("/sys", false), false},
		"an ordinary path":                     {at("/opt/secret", policy.MountNever), mount("/opt/secret/x", true), false},
		"an ordinary path, from above":         {at("/opt/secret", policy.MountNever), mount("/opt", true), false},
		"an ordinary path, beside":             {at("/opt/secret", policy.MountNever), mount("/opt/app", false), true},
		"a path to read, from above, to read":  {at("/opt/x", policy.MountReadOnly), mount("/opt", true), true},
		"a path to read, from above, to write": {at("/opt/x", policy.MountReadOnly), mount("/opt", false), false},
		"everything but what has a line":       {at("/", policy.MountNever), mount("/opt/app", true), false},
		"no line at all":                       {func(a *policy.Allow) { a.Mounts = nil }, mount("/opt/app", true), false},
		"a device":                             {use("/dev/sda", true), device("/dev/sda"), true},
		"not the next":                         {use("/dev/sda", true), device("/dev/sdb"), false},
		"a longer pattern":                     {use("/dev/sda*", true), device("/dev/sda1"), true},
		"all devices, by their directory":      {use("/dev", true), device("/dev"), true},
		"a device node elsewhere":              {use("/data/nodes", true), device("/data/nodes/x"), true},
		"a device that is ordinary":            {use("/dev/ttyS*", false), device("/dev/ttyS0"), false},
		"a device that is ordinary, by a dir":  {use("/dev/bus/usb/001", false), device("/dev/bus/usb"), false},
		"a CDI name":                           {use("nvidia.com/gpu=*", false), device("nvidia.com/gpu=0"), false},
		"another CDI name":                     {use("nvidia.com/gpu=*", false), device("vendor.com/x=0"), true},
		"one of them":                          {func(a *policy.Allow) { use("nvidia.com/gpu=*", false)(a); use("nvidia.com/gpu=0", true)(a) }, device("nvidia.com/gpu=0"), true},
		"whatever has no line":                 {use("*", false), device("vendor.com/x=0"), false},
		"device rules have no line":            {use("*", false), device("c 188:* rwm"), false},
		"all device rules at once":             {use("a *:*", true), device("a *:* rwm"), true},
		"a kind of device":                     {use("b 7:*", true), device("b 7:3 rwm"), true},
		"not another kind":                     {use("b 7:*", true), device("b 8:3 rwm"), false},
		"device rules of a number":             {use("c 188:*", false), device("c 188:0 rw"), false},
		"one within it":                        {func(a *policy.Allow) { use("c 188:*", false)(a); use("c 188:0", true)(a) }, device("c 188:0 rw"), true},
		"a wider one":                          {use("c 188:0", false), device("c 188:* rw"), false},
		"a wider one by its own line":          {func(a *policy.Allow) { use("c 188:0", false)(a); use("c 188:*", true)(a) }, device("c 188:* rw"), true},
		"both ways as close, one refuses":      {func(a *policy.Allow) { use("c 188:*", true)(a); use("c *:0", false)(a) }, device("c 188:0 rw"), false},
		"a capability":                         {add("SYS_ADMIN", true), capability("SYS_ADMIN"), true},
		"not all of them":                      {add("SYS_ADMIN", true), capability("ALL"), false},
		"all of them":                          {add("ALL", true), capability("ALL"), true},
		"a capability that is ordinary":        {add("SYS_TIME", false), capability("CAP_SYS_TIME"), false},
		"capabilities without a line":          {add("*", false), capability("SYS_TIME"), false},
		"not those that all containers have":   {add("*", false), capability("CHOWN"), true},
		"unless by its own line":               {add("NET_RAW", false), capability("NET_RAW"), false},
		"what others have":                     {func(a *policy.Allow) { a.Shared = []string{"n", "v"} }, policy.ServiceAsk{Shared: []string{"v", "n"}}, true},
		"not by half a name":                   {func(a *policy.Allow) { a.Shared = []string{"n"} }, policy.ServiceAsk{Shared: []string{"n2"}}, false},
		"whatever others have":                 {func(a *policy.Allow) { a.Shared = []string{"*"} }, policy.ServiceAsk{Shared: []string{"v", "n"}}, true},
		"a port":                               {ports(policy.PortRange{First: 80, Last: 80}), publish(80, 80), true},
		"another port":                         {ports(policy.PortRange{First: 80, Last: 80}), publish(81, 81), false},
		"ports over two ranges":                {ports(policy.PortRange{First: 90, Last: 99}, policy.PortRange{First: 80, Last: 91}), publish(80, 99), true},
		"ports over a gap":                     {ports(policy.PortRange{First: 80, Last: 89}, policy.PortRange{First: 91, Last: 99}), publish(80, 99), false},
		"up to the last port":                  {ports(policy.PortRange{First: 1, Last: 65535}), publish(65535, 65535), true},
		"no port":                              {ports(), publish(80, 80), false},
		"no port, of the device's choice":      {ports(), publish(0, 0), false},
		"ports from zero":                      {nil, publish(0, 80), false},
		"a registry":                           {func(a *policy.Allow) { a.Registries = []string{"r.example:5000"} }, policy.ServiceAsk{Image: "r.example:5000/a", Registry: "R.example:5000"}, true},
		"another registry":                     {func(a *policy.Allow) { a.Registries = []string{"r.example:5000"} }, policy.ServiceAsk{Image: "r.example/a", Registry: "r.example"}, false},
		"no registry":                          {func(a *policy.Allow) { a.Registries = nil }, policy.ServiceAsk{Image: "r.example/a", Registry: "r.example"}, false},
		"a tag":                                {func(a *policy.Allow) { a.Tags = false }, policy.ServiceAsk{Image: "r.example/a:1", Registry: "r.example"}, false},
		"a digest":                             {func(a *policy.Allow) { a.Tags = false }, policy.ServiceAsk{Image: "r.example/a@sha256:0", Registry: "r.example", Pinned: true}, true},
		"no signature":                         {func(a *policy.Allow) { a.Unsigned = false }, policy.ServiceAsk{}, false},
		"a signature":                          {func(a *policy.Allow) { a.Unsigned = false }, policy.ServiceAsk{Signed: true}, true},
		"an image that nobody signed":          {func(a *policy.Allow) { a.UnsignedImages = false }, policy.ServiceAsk{Signed: true, Image: "r.example/a", Unsigned: "nobody has signed it"}, false},
		"a signed image":                       {func(a *policy.Allow) { a.UnsignedImages = false }, policy.ServiceAsk{Image: "r.example/a"}, true},
		"any image":                            {nil, policy.ServiceAsk{Image: "r.example/a", Unsigned: "nobody has signed it"}, true},
		"an image by another rule":             {func(a *policy.Allow) { a.Unsigned = false }, policy.ServiceAsk{Signed: true, Image: "r.example/a", Unsigned: "nobody has signed it"}, true},
		"nothing is asked":                     {func(a *policy.Allow) { *a = policy.Allow{Unsigned: true} }, policy.ServiceAsk{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := admit(t, c.change, c.ask, policy.Ask{}); (len(got) == 0) != c.in || len(got) > 1 {
				t.Errorf("refusals are %q", got)
			}
		})
	}
}

func TestTheStateOfTheAgentIsOpenedByNothing(t *testing.T) {
	open := func(a *policy.Allow) {
		a.Mounts["/var/lib/margolite"], a.Mounts["/var/lib"] = policy.MountAlways, policy.MountAlways
	}
	s := policy.ServiceAsk{Mounts: []policy.MountAsk{
		{Path: "/var/lib/margolite", ReadOnly: true}, {Path: "/var/lib/margolite/margolite.db"}, {Path: "/var/lib/margolite/locks"}, {Path: "/run/margolite/locks/.."},
	}}
	ask := policy.Ask{Own: []string{"/var/lib/margolite", "/run/margolite"}, Locks: "/run/margolite/locks"}
	if got := admit(t, open, s, ask); len(got) != 4 {
		t.Errorf("refusals are %q", got)
	}
	locks := policy.ServiceAsk{Mounts: []policy.MountAsk{{Path: "/run/margolite/locks"}, {Path: "/run/margolite/locks/press"}}}
	shared := func(a *policy.Allow) { a.Mounts["/run/margolite/locks"] = policy.MountAlways }
	expect.Equal(t, admit(t, shared, locks, ask), nil, "refusals of locks that the site has opened")
	above := policy.ServiceAsk{Mounts: []policy.MountAsk{{Path: "/var/lib", ReadOnly: true}}}
	expect.Equal(t, admit(t, open, above, ask), nil, "refusals of a directory that the site has opened by its own line")
}

func TestWhatIsReservedHasToFit(t *testing.T) {
	device := policy.Resources{CPUs: 4, Memory: 4 << 30, Storage: 64 << 30}
	for name, c := range map[string]struct {
		change        func(*policy.Allow)
		held          policy.Resources
		first, second policy.Resources
		device        policy.Resources
		want          []string
	}{
		"just":              {held: policy.Resources{CPUs: 3.7, Memory: 3 << 30, Storage: 60 << 30}, first: policy.Resources{CPUs: 0.1, Memory: 1 << 29}, second: policy.Resources{CPUs: 0.2, Memory: 1 << 29, Storage: 4 << 30}, device: device},
		"cores":             {held: policy.Resources{CPUs: 3}, first: policy.Resources{CPUs: 1}, second: policy.Resources{CPUs: 0.25}, device: device, want: []string{"cpus: reserves 1.25 cores; with the 3 of other deployments that exceeds 4, all that the device has"}},
		"memory":            {held: policy.Resources{Memory: 1 << 30}, first: policy.Resources{Memory: 3<<30 + 1}, device: device, want: []string{"memory: reserves 3GiB of memory; with the 1GiB of other deployments that exceeds 4GiB, all that the device has"}},
		"storage":           {first: policy.Resources{Storage: 100 << 30}, device: device, want: []string{"storage: reserves 100GiB of storage; with the 0B of other deployments that exceeds 64GiB, all that the device has"}},
		"a limit":           {change: func(a *policy.Allow) { a.CPUs, a.Memory, a.Storage = 1, 20<<20, 20<<10 }, first: policy.Resources{CPUs: 1.001, Memory: 21 << 20, Storage: 21 << 10}, device: device, want: []string{"cpus: reserves 1.001 cores; with the 0 of other deployments that exceeds 1, the configured limit", "memory: reserves 21MiB of memory; with the 0B of other deployments that exceeds 20MiB, the configured limit", "storage: reserves 21KiB of storage; with the 0B of other deployments that exceeds 20KiB, the configured limit"}},
		"more than it has":  {change: func(a *policy.Allow) { a.CPUs = 8 }, first: policy.Resources{CPUs: 8}, device: device},
		"nothing":           {held: policy.Resources{CPUs: 100, Memory: 1 << 50, Storage: 1 << 50}, device: device},
		"nobody knows":      {first: policy.Resources{CPUs: 100, Memory: 1 << 50}},
		"more than numbers": {first: policy.Resources{Memory: math.MaxInt64}, second: policy.Resources{Memory: math.MaxInt64}, device: device, want: []string{"memory: reserves 8EiB of memory; with the 0B of other deployments that exceeds 4GiB, all that the device has"}},
		"less than nothing": {first: policy.Resources{CPUs: math.NaN(), Memory: -1 << 40}, second: policy.Resources{CPUs: -5, Memory: 1}, device: device},
	} {
		t.Run(name, func(t *testing.T) {
			got := admit(t, c.change, policy.ServiceAsk{Reserved: c.first}, policy.Ask{
				Services: []policy.ServiceAsk{{Reserved: c.second}}, Held: c.held, Device: c.device,
			})
			expect.Equal(t, got, c.want, "refusals")
		})
	}
}

func TestRefusalsNameWhoAsksAndAreBounded(t *testing.T) {
	allow := policy.DefaultAllow()
	allow.Unsigned, allow.UnsignedImages, allow.CPUs = false, false, 1
	bad := policy.ServiceAsk{Component: "c", Service: "a", Privileged: true, Image: "r.example/a:1", Unsigned: "nobody has signed sha256:0", Reserved: policy.Resources{CPUs: 1}}
	other := policy.ServiceAsk{Component: "c", Service: "b", Namespaces: []string{"pid", "pid"}, Reserved: policy.Resources{CPUs: 1}}
	gate := policy.New(policy.Options{Allow: allow})
	got := gate.Admit(idA, policy.Ask{Services: []policy.ServiceAsk{bad, other}})
	want := []policy.Refusal{
		{Rule: "policy.allow.privileged", Component: "c", Service: "a", Text: "is privileged"},
		{Rule: "policy.allow.unsignedImages", Component: "c", Service: "a", Text: "runs image r.example/a:1: nobody has signed sha256:0"},
		{Rule: "policy.allow.unsigned", Component: "c", Text: "comes in an unsigned package"},
		{Rule: "policy.allow.namespaces.pid", Component: "c", Service: "b", Text: "joins the pid namespace of the device"},
		{Rule: "policy.allow.cpus", Text: "reserves 2 cores; with the 0 of other deployments that exceeds 1, the configured limit"},
	}
	expect.Equal(t, got, want, "refusals")

	var many policy.ServiceAsk
	for i := range 10000 {
		many.Mounts = append(many.Mounts, policy.MountAsk{Path: "/etc/" + strings.Repeat("x", i)})
	}
	got = gate.Admit(idA, policy.Ask{Services: []policy.ServiceAsk{many}})
	if len(got) != 64 || len(got[63].Text) > 400 {
		t.Errorf("there are %d refusals, the last one %+v", len(got), got[len(got)-1])
	}
}

// Whatever is opened, a device or a path that holds what is closed stays closed
// unless it is named, and nothing panics.
func FuzzAdmit(f *testing.F) {
	for _, s := range []string{"/", "/dev", "/dev/sda", "/var/run/docker.sock", "/var/../etc", "a *:* rwm", "c 1:* r", "vendor.com/x=y", "", "*", "[", "//", "/dev/[a-z]*", "b 8:0"} {
		f.Add(s, s, true)
	}
	own := []string{"/var/lib/margolite", "/run/margolite"}
	f.Fuzz(func(t *testing.T, asked, rule string, allowed bool) {
		allow := policy.DefaultAllow()
		if policy.CheckDevice(rule) == nil {
			allow.Devices[rule] = allowed
		}
		if policy.CheckMount(rule) == nil {
			allow.Mounts[rule] = policy.MountReadOnly
		}
		gate := policy.New(policy.Options{Allow: allow})
		s := policy.ServiceAsk{Devices: []string{asked}, Mounts: []policy.MountAsk{{Path: asked}, {Path: own[0] + "/" + strings.Trim(asked, "/.")}}, Capabilities: []string{asked}}
		var mounts int
		for _, r := range gate.Admit(idA, policy.Ask{Services: []policy.ServiceAsk{s}, Own: own}) {
			if !strings.HasPrefix(r.Rule, "policy.allow.") || r.Text == "" || strings.ContainsAny(r.Text, "\n\x1b") {
				t.Errorf("refused by %+v", r)
			}
			if strings.HasPrefix(r.Rule, "policy.allow.mounts") {
				mounts++
			}
		}
		expect.True(t, strings.Contains(asked, "..") || mounts != 0, "%q: the state of the agent can be mounted", asked)
	})
}
