package log_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/log"
)

func TestPrinter(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 700, time.FixedZone("", 3600))
	entries := []log.Entry{
		{Source: "web-1", Stream: log.Stdout, Time: at, Text: []byte("hello\n")},
		{Source: "db-1", Stream: log.Stdout, Text: []byte("plain\n")},
		{Source: "web-1", Stream: log.Stderr, Time: at, Text: []byte("a very ")},
		{Source: "web-1", Stream: log.Stderr, Time: at, Text: []byte("long line\n")},
	}
	for name, c := range map[string]struct {
		o    log.PrintOptions
		want string
	}{
		"as it was": {log.PrintOptions{}, "hello\nplain\na very long line\n"},
		"prefixes": {
			log.PrintOptions{Prefix: true, Names: []string{"web-1", "db-1"}},
			"web-1  | hello\ndb-1   | plain\nweb-1  | a very \nweb-1  | long line\n",
		},
		"times once a line": {
			log.PrintOptions{Timestamps: true},
			"2026-02-03T03:05:06.000000700Z hello\nplain\n2026-02-03T03:05:06.000000700Z a very long line\n",
		},
		"colours by source": {
			log.PrintOptions{Prefix: true, Color: true, Names: []string{"web-1"}},
			"\x1b[36mweb-1  | \x1b[0mhello\n\x1b[33mdb-1   | \x1b[0mplain\n\x1b[36mweb-1  | \x1b[0ma very \n\x1b[36mweb-1  | \x1b[0mlong line\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			p := log.NewPrinter(&got, c.o)
			for _, e := range entries {
				if err := p.Print(e); err != nil {
					t.Fatal(err)
				}
			}
			if got.String() != c.want {
				t.Errorf("got\n%q\nwant\n%q", got.String(), c.want)
			}
		})
	}
	t.Run("passes on the error of the writer", func(t *testing.T) {
		r, w := io.Pipe()
		r.Close()
		if err := log.NewPrinter(w, log.PrintOptions{}).Print(entries[0]); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error %v, want io.ErrClosedPipe", err)
		}
	})
}
