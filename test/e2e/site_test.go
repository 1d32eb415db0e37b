package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// What lies beyond the device: a nameserver that knows one name, and a host of
// that name.
const (
	siteName    = "historian.plant.example"
	siteAddress = "198.51.100.53"
	siteURL     = "http://" + siteName + ":8000/"
)

// newSite makes it, and the device's resolv.conf name its nameserver.
func newSite(t *testing.T) {
	t.Helper()
	link, err := netlink.LinkByName("lo")
	check(t, err)
	address, err := netlink.ParseAddr(siteAddress + "/32")
	check(t, err)
	check(t, netlink.AddrAdd(link, address))
	t.Cleanup(func() { check(t, netlink.AddrDel(link, address)) })

	file := filepath.Join(t.TempDir(), "resolv.conf")
	check(t, os.WriteFile(file, []byte("nameserver "+siteAddress+"\n"), 0o644))
	check(t, unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""))
	t.Cleanup(func() { check(t, unix.Unmount("/etc/resolv.conf", 0)) })

	names, err := net.ListenPacket("udp", siteAddress+":53")
	check(t, err)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		answerNames(names)
	}()
	host, err := net.Listen("tcp", siteAddress+":8000")
	check(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "here") })}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(host) // until it is closed
	}()
	t.Cleanup(func() {
		check(t, names.Close())
		check(t, server.Close())
		<-answered
		<-served
	})
}

// answerNames answers until the connection is closed.
func answerNames(conn net.PacketConn) {
	buffer := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		switch {
		case q.Name.String() != siteName+".":
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(siteAddress).As4()},
			}}
		}
		if reply, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(reply, from) // who asked asks again
		}
	}
}
