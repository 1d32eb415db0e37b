package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/margolite/margolite/runtime/limit"
)

// dns answers queries in the sandboxes: names of their hosts files from memory, all others
// by asking nameservers. Each sandbox has two sockets, with a goroutine for each.
type dns struct {
	logger     *slog.Logger
	resolvConf string                       // the host's
	contained  func(what string, err error) // see Options

	queries *limit.Limiter // being forwarded

	mu    sync.Mutex
	ctx   context.Context // of Serve; nil: not serving
	zones map[string]*zone
	wait  sync.WaitGroup
}

const (
	maxForwards    = 64 // queries being forwarded, of all sandboxes
	maxForwardsOne = 16 // of one sandbox
	maxStreams     = 8  // TCP connections of one sandbox; more wait

	askedPerSecond = 1000 // queries and TCP connections served per sandbox; more wait
	askedAtOnce    = 1000 // after a second without any
)

func newDNS(resolvConf string, logger *slog.Logger, contained func(what string, err error)) *dns {
	return &dns{
		logger:     logger,
		resolvConf: resolvConf,
		contained:  contained,
		queries: limit.New(0, limit.Bound{Most: maxForwards, Counts: func(limit.Key, limit.Key) bool { return true }},
			limit.Bound{Most: maxForwardsOne, Counts: func(held, wanted limit.Key) bool { return held == wanted }}),
		zones: make(map[string]*zone),
	}
}

type zone struct {
	dns   *dns
	name  string
	netns string // path of its namespace
	asked *rate.Limiter

	view atomic.Pointer[view]
	turn atomic.Uint32 // which of several addresses comes first

	inode   uint64 // of the namespace with the sockets
	packets *net.UDPConn
	listen  net.Listener
}

type view struct {
	Sandbox
	files *sandboxFiles // with its hosts file
}

// Serve answers DNS queries in every sandbox that Ensure has made since the start, until ctx
// ends. While it does not run, a query is refused at once, and programs ask the next
// nameserver of the sandbox's resolv.conf.
func (n *Networks) Serve(ctx context.Context) error {
	d := n.dns
	d.mu.Lock()
	if d.ctx != nil {
		d.mu.Unlock()
		return errors.New("cannot serve DNS: it is already served")
	}
	d.ctx = ctx
	for _, z := range d.zones {
		z.open()
	}
	d.mu.Unlock()

	<-ctx.Done()
	d.mu.Lock()
	d.ctx = nil
	for _, z := range d.zones {
		z.close()
	}
	d.mu.Unlock()
	d.wait.Wait()
	return nil
}

// ensure answers in the sandbox, whose namespace must exist. If it cannot, the sandbox asks
// other nameservers, which know no replicas; those in its hosts file still resolve.
func (d *dns) ensure(s Sandbox, netns string, files *sandboxFiles) {
	if !s.hasDNS() {
		d.remove(s.file())
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	z := d.zones[s.file()]
	if z == nil {
		z = &zone{dns: d, name: s.file(), netns: netns, asked: rate.NewLimiter(askedPerSecond, askedAtOnce)}
		d.zones[z.name] = z
	}
	z.view.Store(&view{s, files})
	if d.ctx != nil {
		z.open()
	}
}

// remove releases the namespace of a sandbox.
func (d *dns) remove(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if z := d.zones[name]; z != nil {
		z.close()
		delete(d.zones, name)
	}
}

// hasDNS is false on the host's network and without networks.
func (s Sandbox) hasDNS() bool { return !s.Host && len(s.Attached) > 0 }

func (s Sandbox) isInternal() bool {
	return !slices.ContainsFunc(s.Attached, func(a Attachment) bool { return !a.Network.Internal })
}

// open opens the zone's sockets unless they are open. The caller holds the lock.
func (z *zone) open() {
	var stat unix.Stat_t
	err := unix.Stat(z.netns, &stat)
	if err == nil && z.packets != nil && z.inode == stat.Ino {
		return
	}
	z.close()
	if err == nil {
		err = inside(z.netns, z.openInside)
	}
	if err != nil {
		z.close()
		z.dns.logger.Warn("DNS is not served; containers ask the host's nameservers", "sandbox", z.name, "error", err)
		return
	}
	z.inode = stat.Ino
	ctx, packets, listen := z.dns.ctx, z.packets, z.listen
	z.dns.wait.Go(func() { z.servePackets(ctx, packets) })
	z.dns.wait.Go(func() { z.serveStreams(ctx, listen) })
}

// openInside opens the sockets that queries for port 53 are redirected to. They cannot use
// that port: a container may be a nameserver itself, on all its addresses.
func (z *zone) openInside() error {
	var last error
	for port := firstPort; port < firstPort+maxPortTries; port++ {
		at := netip.AddrPortFrom(dnsAddress, port)
		packets, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		if err == nil {
			var listen *net.TCPListener
			if listen, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at)); err == nil {
				z.packets, z.listen = packets, netutil.LimitListener(listen, maxStreams)
				return redirect(at)
			}
			_ = packets.Close()
		}
		last = err
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return fmt.Errorf("cannot open DNS sockets: %w", last)
}

// close ends the goroutines of a zone. The caller holds the lock.
func (z *zone) close() {
	if z.packets != nil {
		_ = z.packets.Close()
	}
	if z.listen != nil {
		_ = z.listen.Close()
	}
	z.packets, z.listen, z.inode = nil, nil, 0
}
