package netlink

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openRoute(t *testing.T) *Conn {
	t.Helper()
	c, err := Open(unix.NETLINK_ROUTE, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func links() *Message {
	return &Message{Type: unix.RTM_GETLINK, Header: make([]byte, unix.SizeofIfInfomsg)}
}

// indexes are those of the links.
func indexes(t *testing.T, c *Conn) []uint32 {
	t.Helper()
	all, err := List(c, links(), func(data []byte) (uint32, bool, error) {
		return binary.NativeEndian.Uint32(data[4:]), true, nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("links are %v: %v", all, err)
	}
	return all
}

func TestConnectionLivesOnAfterARefusal(t *testing.T) {
	c := openRoute(t)
	before := indexes(t, c)
	missing := links()
	missing.Text(unix.IFLA_IFNAME, "none0")
	if err := c.Do(missing); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a link that is not there: %v", err)
	}
	tooLong := links()
	tooLong.Bytes(unix.IFLA_IFNAME, make([]byte, 1<<16)...)
	if err := c.Do(tooLong); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a name that is too long: %v", err)
	}
	// One that is not read to its end by the caller is read all the same.
	stop := errors.New("stop")
	if _, err := List(c, links(), func([]byte) (int, bool, error) { return 0, false, stop }); !errors.Is(err, stop) {
		t.Errorf("a list that the caller cannot read: %v", err)
	}
	if after := indexes(t, c); len(after) != len(before) {
		t.Errorf("links are %v, were %v", after, before)
	}
}

// Who may send to the socket is not taken for the kernel.
func TestOnlyTheKernelIsHeard(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c, forger := openRoute(t), openRoute(t)
	var port uint32
	err := c.raw.Control(func(fd uintptr) {
		if name, err := unix.Getsockname(int(fd)); err == nil {
			port = name.(*unix.SockaddrNetlink).Pid
		}
	})
	if err != nil || port == 0 {
		t.Fatalf("the socket has no name: %v", err)
	}
	forged := &Message{Type: unix.NLMSG_ERROR, Header: binary.NativeEndian.AppendUint32(nil, 0)}
	b, err := forged.appendTo(nil, 0, c.sequence+1)
	if err != nil {
		t.Fatal(err)
	}
	err = forger.raw.Control(func(fd uintptr) {
		if err := unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	missing := links()
	missing.Text(unix.IFLA_IFNAME, "none0")
	if err := c.Do(missing); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a link that is not there: %v", err)
	}
}

func TestCloseEndsReceive(t *testing.T) {
	c, err := Open(unix.NETLINK_ROUTE, 1<<(unix.RTNLGRP_LINK-1))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- c.Receive(func(uint16, []byte) {}) }()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
}

func TestSilenceEnds(t *testing.T) {
	c := openRoute(t)
	if err := c.file.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
}

func TestOutcomes(t *testing.T) {
	end := func(kind, flags uint16, parts ...[]byte) answer {
		a := answer{kind: kind, flags: flags}
		for _, p := range parts {
			a.data = append(a.data, p...)
		}
		return a
	}
	number := func(errno unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno))) }
	var words Attributes
	words.Big32(unix.NLMSGERR_ATTR_OFFS, 20)
	words.Text(unix.NLMSGERR_ATTR_MSG, "because")
	request := append(binary.NativeEndian.AppendUint32(nil, 22), make([]byte, 20)...) // 22 bytes, and two to the next
	for name, c := range map[string]struct {
		a     answer
		errno unix.Errno
		text  string
	}{
		"success":                         {end(unix.NLMSG_ERROR, 0, number(0), request), 0, ""},
		"an error":                        {end(unix.NLMSG_ERROR, 0, number(unix.EEXIST), request), unix.EEXIST, ""},
		"an error with words":             {end(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, number(unix.EEXIST), request, words.bytes), unix.EEXIST, "because"},
		"and without the request":         {end(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS|unix.NLM_F_CAPPED, number(unix.EEXIST), request[:16], words.bytes), unix.EEXIST, "because"},
		"a list's error":                  {end(unix.NLMSG_DONE, unix.NLM_F_ACK_TLVS, number(unix.EBUSY), words.bytes), unix.EBUSY, "because"},
		"a request that says it is long":  {end(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, number(unix.EEXIST), binary.NativeEndian.AppendUint32(nil, 1<<31)), unix.EEXIST, ""},
		"a request that says it is empty": {end(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, number(unix.EEXIST), make([]byte, 4)), unix.EEXIST, ""},
	} {
		err := c.a.outcome()
		if c.errno == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, c.errno) || !strings.HasSuffix(err.Error(), c.text) || c.text == "" && err.Error() != c.errno.Error() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := end(unix.NLMSG_ERROR, 0).outcome(); err == nil {
		t.Error("an end that says nothing is a success")
	}
}
