package network

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	nl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
)

func TestOnlySoMuchOfAListIsKept(t *testing.T) {
	passed := 0
	list := func(length, wanted int) ([]int, error) {
		passed = 0
		return gathered("numbers", func(i int) bool { return i < wanted }, func(pass func(int) bool) error {
			for passed = 1; passed <= length; passed++ {
				if !pass(passed - 1) {
					break
				}
			}
			return nil
		})
	}
	expect.Equal(t, len(expect.Value(list(100*maxListed, maxListed))(t)), maxListed, "numbers kept")
	if _, err := list(100*maxListed, maxListed+1); !errors.Is(err, errTooMany) || passed != maxListed+1 {
		t.Errorf("after %d: %v", passed, err)
	}
}

// forge sends this to all netlink sockets of the thread's namespace in the
// kernel's place, and returns how many took it and how many did not.
func forge(message []byte) (took, refused int, err error) {
	content, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		return 0, 0, err
	}
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(s)
	for line := range strings.Lines(string(content)) {
		var socket string
		var protocol, port uint32
		if _, err := fmt.Sscan(line, &socket, &protocol, &port); err != nil || protocol != unix.NETLINK_ROUTE || port == 0 {
			continue
		}
		switch err := unix.Sendto(s, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); {
		case err == nil:
			took++
		case errors.Is(err, unix.ECONNREFUSED):
			refused++
		default:
			return 0, 0, err
		}
	}
	return took, refused, nil
}

// Who is in the same namespace can send to a handle: what is done there is done
// again. Lists do not notice.
func TestDisturbanceIsOvercome(t *testing.T) {
	whole, err := nl.Message{Header: nl.Header{Length: 20, Type: nl.Error}, Data: make([]byte, 4)}.MarshalBinary()
	check(t, err)
	for name, message := range map[string][]byte{"a message": whole, "a byte": {1}, "zeros": make([]byte, 20)} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() error {
				attempts := 0
				err := insideLinks(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), func(c *netlink.Handle) error {
					attempts++
					took, refused := 0, 0
					links, err := allLinks(func(l netlink.Link) (wanted bool) {
						if attempts <= 2 && took == 0 {
							took, refused, err = forge(message)
						}
						return l.Attrs().Name == "lo"
					})
					if err != nil || len(links) != 1 || attempts <= 2 && (took == 0 || refused == 0) {
						return fmt.Errorf("links are %v: %v; %d sockets took it, %d did not", links, err, took, refused)
					}
					err = c.LinkSetUp(links[0])
					expect.True(t, attempts > 2 || err != nil, "the handle was not disturbed")
					return err
				})
				expect.Equal(t, attempts, 3, "attempts")
				lo, failed := net.InterfaceByName("lo")
				expect.True(t, failed != nil || lo.Flags&net.FlagUp != 0, "it is not done")
				return errors.Join(err, failed)
			})
		})
	}
}
