package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
)

// plain is a text that others had a hand in, a server for example, without what
// a terminal would obey: control characters, and marks that turn text around.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, text)
}

// plainWriter writes what plain leaves of each text.
type plainWriter struct{ to io.Writer }

func (w plainWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, plain(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// isTerminal says whether stream, an end of this process, is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// terminalSize is the size of the terminal that stream is; zero where it is none.
func terminalSize(stream any) control.Size {
	f, ok := stream.(*os.File)
	if !ok {
		return control.Size{}
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return control.Size{}
	}
	return control.Size{Columns: size.Col, Rows: size.Row}
}

// rawTerminal hands every key to who reads f, until restore is called.
func rawTerminal(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("cannot read the mode of the terminal: %w", err)
	}
	raw := *before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("cannot set the mode of the terminal: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }, nil // there is nobody to tell
}

// terminalSizes tells the size of a terminal now and whenever it changes, until
// ctx is done. The returned function waits until that has ended.
func terminalSizes(ctx context.Context, f *os.File) (sizes <-chan control.Size, join func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	to, done := make(chan control.Size), make(chan struct{})
	go func() {
		defer close(done)
		defer signal.Stop(changed)
		for {
			select {
			case to <- terminalSize(f):
			case <-ctx.Done():
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return to, func() { <-done }
}
