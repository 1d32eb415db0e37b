package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/margolite/margolite/agent/control"
)

// screen is where the story is told.
type screen struct {
	out      io.Writer
	terminal bool // lines may be rewritten

	mu      sync.Mutex
	bar     string // object of the progress bar that is open
	step    int64  // of the bar, where lines are not rewritten
	figures []string
}

func (s *screen) chapter(title string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
	if s.terminal {
		title = "\033[1m" + title + "\033[0m"
	}
	fmt.Fprintf(s.out, "\n== %s\n", title)
}

func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
	fmt.Fprintf(s.out, "   "+format+"\n", args...)
}

// figure is said now and again in the summary.
func (s *screen) figure(what string, d time.Duration) {
	s.say("%s: %s", what, d.Round(10*time.Millisecond))
	s.figures = append(s.figures, fmt.Sprintf("%-24s %s", what, d.Round(10*time.Millisecond)))
}

func (s *screen) summary() {
	s.chapter("Done")
	for _, f := range s.figures {
		s.say("%s", f)
	}
	s.say("nothing is left behind")
}

// event shows what the agent tells.
func (s *screen) event(e control.Event) {
	switch e.Kind {
	case control.DocumentVerified:
		s.say("verified  document %s, %d bytes", short(e.Digest), e.Progress.Done)
	case control.ManifestAccepted:
		s.say("accepted  state manifest version %d, %s", e.Version, short(e.Digest))
	case control.ManifestRefused:
		s.say("refused   %s", e.Text)
	case control.PackageVerified:
		s.say("verified  Compose archive of %s, %s, %d bytes", e.Component, short(e.Digest), e.Progress.Done)
	case control.Transfer:
		s.progress(e.Progress)
	case control.DeploymentChanged:
		name := "deployment"
		if e.Component != "" {
			name = "component " + e.Component
		}
		s.say("state     %s: %s", name, e.State)
		if e.Error != nil {
			s.say("          %s: %s", e.Error.Code, e.Error.Message)
		}
	case control.ServiceChanged:
		if e.Service != "" {
			s.say("          %s", e.Text)
		}
	case control.ReportDelivered:
		s.say("reported  %s for manifest version %d", e.State, e.Version)
	}
}

const (
	// barWidth is how many characters a full bar has.
	barWidth = 20
	// worthABar is how many bytes are.
	worthABar = 100 << 10
)

// progress draws a bar in bytes: over and over on a terminal, a line per
// quarter elsewhere.
func (s *screen) progress(p *control.Progress) {
	if p.Total < worthABar {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	quarter := 4 * p.Done / p.Total
	if p.Object != s.bar {
		s.close()
		s.bar, s.step = p.Object, -1
	}
	if !s.terminal {
		if quarter == s.step {
			return
		}
		s.step = quarter
	}
	full := int(barWidth * p.Done / p.Total)
	line := fmt.Sprintf("   pulling   %s [%s%s] %d of %d bytes", shortObject(p.Object),
		strings.Repeat("#", full), strings.Repeat(".", barWidth-full), p.Done, p.Total)
	if s.terminal {
		fmt.Fprintf(s.out, "\r\033[K%s", line)
	} else {
		fmt.Fprintln(s.out, line)
	}
	if p.Done >= p.Total {
		s.close()
	}
}

// close ends an open bar. The caller holds mu.
func (s *screen) close() {
	if s.bar != "" && s.terminal {
		fmt.Fprintln(s.out)
	}
	s.bar = ""
}

func short(digest string) string {
	return digest[:min(len(digest), len("sha256:")+12)]
}

// shortObject leaves the registry out of a name.
func shortObject(name string) string {
	if i := strings.LastIndex(name, "/"); i >= 0 {
		name = name[i+1:]
	}
	return fmt.Sprintf("%.20s", name)
}
