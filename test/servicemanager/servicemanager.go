// Package servicemanager stands where systemd is: at the end of the socket at
// which a service says how it is (sd_notify).
package servicemanager

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// waiting is how many messages nobody has asked for yet: more than a service
// says in the longest test.
const waiting = 1000

// Listen opens the socket until the test ends. Its address is what a service has
// to find in NOTIFY_SOCKET; messages are heard in the order in which they came.
func Listen(t testing.TB) (address string, heard <-chan string) {
	t.Helper()
	dir := expect.Value(os.MkdirTemp("/tmp", "notify-"))(t) // paths of sockets are short
	t.Cleanup(func() { os.RemoveAll(dir) })
	address = filepath.Join(dir, "s")
	conn := expect.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"}))(t)
	t.Cleanup(func() { conn.Close() })
	messages := make(chan string, waiting)
	go func() { // ends with the socket
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			select {
			case messages <- string(buffer[:n]):
			case <-t.Context().Done():
				return
			}
		}
	}()
	return address, messages
}
