package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
	"unicode"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/margolite/margolite/agent/control"
)

// plain removes control characters and marks that change direction from untrusted text.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, text)
}

type plainWriter struct{ to io.Writer }

func (w plainWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, plain(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

func table(to io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(to, 0, 0, 2, ' ', 0) }

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func terminalSize(stream any) control.Size {
	f, ok := stream.(*os.File)
	if !ok {
		return control.Size{}
	}
	columns, rows, _ := term.GetSize(int(f.Fd()))
	return control.Size{Columns: uint16(columns), Rows: uint16(rows)}
}

// terminalSizes reports the size of a terminal now and whenever it changes, until ctx is done. The
// returned function waits for its end.
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
