package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/vishvananda/netlink"
)

// place is a network namespace that programs are started in. Its thread stays
// for as long as the place is open: programs that die with their parent die with
// the thread that started them.
type place struct {
	calls chan func()
	done  chan struct{}
}

// newPlace makes a network namespace with a loopback interface of its own.
func newPlace() (*place, error) {
	p := &place{calls: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go p.serve(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("cannot make a network namespace: %w", err)
	}
	return p, nil
}

func (p *place) serve(ready chan<- error) {
	defer close(p.done)
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		err = loopbackUp()
	}
	ready <- err
	if err != nil {
		return
	}
	for call := range p.calls {
		call()
	}
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// start starts a program there; without a place, here.
func (p *place) start(cmd *exec.Cmd) error {
	if p == nil {
		return cmd.Start()
	}
	result := make(chan error)
	p.calls <- func() { result <- cmd.Start() }
	return <-result
}

// run runs a program there, and gives what it wrote when it fails.
func (p *place) run(ctx context.Context, cmd *exec.Cmd) error {
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err := p.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w\n%s\n%s", filepath.Base(cmd.Path), err, out.text, cmd))
	}
	return nil
}

func (p *place) close() {
	if p == nil {
		return
	}
	close(p.calls)
	<-p.done
}

// tail keeps the last of what is written to it.
type tail struct{ text []byte }

func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-4<<10):]
	return len(b), nil
}
