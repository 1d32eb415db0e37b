// Hog is a program that takes more than its share, where a shell cannot.
//
//	hog lease FILE...   holds a write lease on each file, and renews what is broken
//	hog dns             asks the resolver of its container as fast as it can
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	switch args := os.Args[1:]; {
	case len(args) > 1 && args[0] == "lease":
		lease(args[1:])
	case len(args) == 1 && args[0] == "dns":
		ask()
	default:
		fmt.Fprintln(os.Stderr, "usage: hog lease FILE... | hog dns")
		os.Exit(2)
	}
}

// breakTime is how long the kernel waits for the holder of a lease before it takes it
// away: /proc/sys/fs/lease-break-time, and one more second.
const breakTime = 46 * time.Second

// lease holds the leases for as long as the kernel lets it: whoever opens one of
// the files waits until then. Then it takes them again.
func lease(files []string) {
	signal.Ignore(unix.SIGIO)
	type lease struct {
		file  *os.File
		asked time.Time // when somebody was first seen to wait; zero: nobody does
	}
	held := map[string]*lease{}
	for {
		for _, name := range files {
			l := held[name]
			if l == nil {
				if f := take(name); f != nil {
					held[name] = &lease{file: f}
					fmt.Println("leased", name)
				}
				continue
			}
			kind, err := unix.FcntlInt(l.file.Fd(), unix.F_GETLEASE, 0)
			switch {
			case err == nil && kind == unix.F_WRLCK:
			case l.asked.IsZero():
				l.asked = time.Now()
			case time.Since(l.asked) > breakTime:
				l.file.Close()
				delete(held, name)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// take opens a file and takes a lease on it; nil: it cannot now.
func take(name string) *os.File {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		f.Close()
		return nil
	}
	return f
}

// ask sends questions for names that no cache knows, and drops the answers.
func ask() {
	conn, err := net.Dial("udp", "127.0.0.11:53")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("asking")
	for n := 0; ; n++ {
		label := fmt.Sprintf("host-%d", n)
		question := []byte{byte(n >> 8), byte(n), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, byte(len(label))}
		question = append(question, label...)
		question = append(question, "\x07example\x00\x00\x01\x00\x01"...)
		_, _ = conn.Write(question) // also while nobody answers
	}
}
