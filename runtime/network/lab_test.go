package network_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
)

// The tests run on the real kernel, each in namespaces of its own, so that neither
// a link nor a rule nor a mount of the host is touched.
func TestMain(m *testing.M) {
	if order := os.Getenv(killedRun); order != "" {
		fmt.Fprintln(os.Stderr, workUntilKilled(order))
		os.Exit(1)
	}
	if strings.Contains(strings.Join(os.Args, " "), "-test.fuzz") { // needs no kernel
		os.Exit(m.Run())
	}
	os.Exit(isolated.MainInLanes(m))
}

// lab is a host with an uplink to one other host.
type lab struct {
	*network.Networks
	t       testing.TB
	ctx     context.Context
	runDir  string
	outside string // namespace of the other host

	resolvConf string // the host's; "": the file that this machine has
}

const (
	uplink      = "up0"
	hostAddr    = "203.0.113.2"
	outsideAddr = "203.0.113.1"
)

func newLab(t testing.TB) *lab {
	t.Helper()
	requireLab(t)
	return newLabIn(t, t.TempDir())
}

func requireLab(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs the program " + program)
		}
	}
}

// ip changes links, addresses and routes of the thread's network namespace: by
// what others made, and not by what is tested. It returns what the program
// prints.
func ip(t testing.TB, format string, args ...any) string {
	t.Helper()
	words := strings.Fields(fmt.Sprintf(format, args...))
	out, err := exec.Command("ip", words...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(words, " "), err, out)
	}
	return string(out)
}

func newLabIn(t testing.TB, runDir string) *lab {
	t.Helper()
	l := &lab{t: t, ctx: t.Context(), runDir: runDir, outside: newNamespace(t)}
	linkUp(t, "lo")
	l.connect(uplink, l.outside, hostAddr, outsideAddr)
	ip(t, "route replace default via %s", outsideAddr)
	setSysctl(t, "net/ipv4/ip_forward", "0")

	l.Networks = expect.Value(network.New(network.Options{RunDir: runDir, Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(l.clear)
	return l
}

// clear removes everything.
func (l *lab) clear() {
	l.t.Helper()
	ctx := context.WithoutCancel(l.ctx)
	expect.Check(l.t, l.Leftovers(ctx, nil, nil))
	expect.Check(l.t, l.SyncPorts(ctx, nil, nil))
}

// connect makes a link of the host to another one.
func (l *lab) connect(name, netns, ours, theirs string) {
	l.t.Helper()
	ip(l.t, "link add %s mtu 1400 type veth peer name eth0 mtu 1400 netns %s", name, netns)
	l.t.Cleanup(func() { ip(l.t, "link del %s", name) })
	address(l.t, name, ours+"/24")
	inside(l.t, netns, func() {
		address(l.t, "eth0", theirs+"/24")
		linkUp(l.t, "lo")
		ip(l.t, "route replace default via %s", ours)
	})
}

// network makes one and says how a replica in it looks.
func (l *lab) network(project string, taken ...netip.Prefix) network.Network {
	l.t.Helper()
	return l.networkOf(network.Network{Name: project + "_default"}, false, taken...)
}

func (l *lab) networkOf(wanted network.Network, ipv6 bool, taken ...netip.Prefix) network.Network {
	l.t.Helper()
	w := expect.Value(l.Choose(wanted, ipv6, taken))(l.t)
	expect.Check(l.t, l.EnsureNetwork(l.ctx, w))
	return w
}

func replica(w network.Network, service string, number int) network.Sandbox {
	project, _, _ := strings.Cut(w.Name, "_")
	return network.Sandbox{
		Project: project, Service: service, Number: number, Hostname: service,
		Attached: []network.Attachment{attachment(w, number)},
	}
}

// attachment has the addresses that come so far behind those of the gateway.
func attachment(w network.Network, number int) network.Attachment {
	a := network.Attachment{Network: w, Address: w.Gateway, Address6: w.Gateway6}
	for range number {
		a.Address, a.Address6 = a.Address.Next(), a.Address6.Next()
	}
	return a
}

func (l *lab) sandbox(s network.Sandbox) (netns string) {
	l.t.Helper()
	expect.Check(l.t, l.EnsureSandbox(l.ctx, s, nil))
	return l.Paths(s).NetNS
}

func newNamespace(t testing.TB) string {
	t.Helper()
	var ns *os.File
	onThread(t, func() {
		expect.Check(t, unix.Unshare(unix.CLONE_NEWNET))
		ns = expect.Value(os.Open("/proc/thread-self/ns/net"))(t)
	})
	t.Cleanup(func() { ns.Close() })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
}

// inside runs f in the namespace at this path; the empty path is the host.
func inside(t testing.TB, netns string, f func()) {
	t.Helper()
	if netns == "" {
		f()
		return
	}
	onThread(t, func() {
		fd := expect.Value(unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
		expect.Check(t, unix.Setns(fd, unix.CLONE_NEWNET))
		expect.Check(t, unix.Close(fd))
		f()
	})
}

// onThread runs f on a thread that ends with it. A failure in f is one of the
// test.
func onThread(t testing.TB, f func()) {
	t.Helper()
	if !finishes(f) {
		t.FailNow()
	}
}

func finishes(f func()) bool {
	done := make(chan bool, 1)
	go func() {
		runtime.LockOSThread()
		finished := false
		defer func() { done <- finished }()
		if unix.Gettid() == unix.Getpid() { // it cannot end, and /proc/net is that of its namespace
			finished = finishes(f)
			runtime.UnlockOSThread()
			return
		}
		f()
		finished = true
	}()
	return <-done
}

func address(t testing.TB, link, prefix string) {
	t.Helper()
	ip(t, "address replace %s dev %s", prefix, link)
	linkUp(t, link)
}

func linkUp(t testing.TB, name string) {
	t.Helper()
	ip(t, "link set %s up", name)
}

func setSysctl(t testing.TB, key, value string) {
	t.Helper()
	expect.Check(t, os.WriteFile("/proc/sys/"+key, []byte(value), 0))
}

func sysctl(t testing.TB, key string) string {
	t.Helper()
	return strings.TrimSpace(string(expect.Value(os.ReadFile("/proc/sys/" + key))(t)))
}

// serve answers on the port with a name and the address of whoever asks.
func serve(t testing.TB, netns, protocol string, at string, name string) {
	t.Helper()
	inside(t, netns, func() {
		if protocol == "udp" {
			answerPackets(t, "udp", at, func(_ []byte, from net.Addr, answer func([]byte)) {
				answer([]byte(name + " " + from.(*net.UDPAddr).IP.String()))
			})
			return
		}
		accept(t, "tcp", at, func(conn net.Conn) {
			fmt.Fprint(conn, name+" "+conn.RemoteAddr().(*net.TCPAddr).IP.String())
		})
	})
}

// answerPackets has each datagram answered.
func answerPackets(t testing.TB, network, at string, reply func(asked []byte, from net.Addr, answer func([]byte))) {
	t.Helper()
	conn := expect.Value(net.ListenPacket(network, at))(t)
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buffer := make([]byte, 4096); ; {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			reply(buffer[:n], from, func(answer []byte) { _, _ = conn.WriteTo(answer, from) })
		}
	}()
}

// accept has each connection talked to, then closed.
func accept(t testing.TB, network, at string, talk func(conn net.Conn)) {
	t.Helper()
	listener := expect.Value(net.Listen(network, at))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				talk(conn)
			}()
		}
	}()
}

const (
	patience = time.Minute            // for what has to come
	silence  = 150 * time.Millisecond // for what is dropped: an answer takes a fraction of it
)

// dial connects from a namespace, until the test ends.
func dial(t testing.TB, netns, protocol, at string) (conn net.Conn) {
	t.Helper()
	inside(t, netns, func() { conn = expect.Value(net.DialTimeout(protocol, at, patience))(t) })
	t.Cleanup(func() { conn.Close() })
	return conn
}

// exchange says something and returns the answer.
func exchange(conn net.Conn, said string, wait time.Duration) string {
	_ = conn.SetDeadline(time.Now().Add(wait))
	_, _ = conn.Write([]byte(said))
	buf := make([]byte, 100)
	n, _ := conn.Read(buf)
	return string(buf[:n])
}

// ask returns what the server at the address says, or "" when none answers.
func ask(t testing.TB, netns, protocol, at string, wait time.Duration) string {
	t.Helper()
	answer := ""
	inside(t, netns, func() {
		conn, err := net.DialTimeout(protocol, at, wait)
		if err != nil {
			return
		}
		defer conn.Close()
		answer = exchange(conn, "?", wait)
	})
	return answer
}

func answers(t testing.TB, netns, protocol, at, want string) {
	t.Helper()
	got := ask(t, netns, protocol, at, patience)
	if got != want && !(strings.HasSuffix(want, "*") && strings.HasPrefix(got, strings.TrimSuffix(want, "*"))) {
		t.Errorf("%s to %s: got %q, want %q", protocol, at, got, want)
	}
}

func silent(t testing.TB, netns, protocol, at string) {
	t.Helper()
	expect.Equal(t, ask(t, netns, protocol, at, silence), "", "%s to %s", protocol, at)
}

// triedAgain is how many more packets than one it took to connect over TCP.
func triedAgain(t testing.TB, netns, at string) (times uint32) {
	t.Helper()
	raw := expect.Value(dial(t, netns, "tcp", at).(*net.TCPConn).SyscallConn())(t)
	expect.Check(t, raw.Control(func(fd uintptr) {
		times = expect.Value(unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO))(t).Total_retrans
	}))
	return times
}

func port(s network.Sandbox, protocol string, host, container uint16) network.Port {
	return network.Port{Protocol: protocol, HostPort: host, ContainerPort: container, Address: s.Address()}
}

func at(addr any, port int) string { return net.JoinHostPort(fmt.Sprint(addr), strconv.Itoa(port)) }

// traces are all that the package leaves in the kernel and in RunDir.
func (l *lab) traces() []string {
	l.t.Helper()
	var found []string
	for _, link := range expect.Value(net.Interfaces())(l.t) {
		if strings.HasPrefix(link.Name, "mgl-") || strings.HasPrefix(link.Name, "mgv-") {
			found = append(found, "link "+link.Name)
		}
	}
	mounts := expect.Value(os.ReadFile("/proc/self/mountinfo"))(l.t)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, l.runDir+"/netns") || strings.Contains(line, l.runDir+"/hosts") {
			found = append(found, "mount "+line)
		}
	}
	for _, dir := range []string{"netns", "hosts"} {
		entries, err := os.ReadDir(filepath.Join(l.runDir, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			expect.Check(l.t, err)
		}
		for _, e := range entries {
			found = append(found, "file "+dir+"/"+e.Name())
		}
	}
	for _, name := range []string{"forwarding", "forwarding6"} {
		if _, err := os.Stat(filepath.Join(l.runDir, name)); err == nil {
			found = append(found, "file "+name)
		}
	}
	if hasTable(l.t, "margolite") {
		found = append(found, "table")
	}
	return found
}

// hasTable says whether there is a table of this name, of any family.
func hasTable(t testing.TB, name string) bool {
	t.Helper()
	out := expect.Value(exec.Command("nft", "list", "tables").Output())(t)
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); fields[len(fields)-1] == name {
			return true
		}
	}
	return false
}

// generation counts the transactions of nf_tables.
func generation(t testing.TB) (n uint32) {
	t.Helper()
	n = expect.Value(network.Generation())(t)
	expect.Require(t, n != 0, "the kernel tells no generation")
	return n
}
