package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/margolite/margolite/agent/control"
)

// screen shows the story.
type screen struct {
	out      io.Writer
	terminal bool // lines may be rewritten
	colored  bool
	record   *recording // or nil

	mu      sync.Mutex
	bar     string // object of the progress bar that is open
	step    int64  // of the bar, where lines are not rewritten
	figures []string
}

// kind is how a part of a line looks.
type kind string

const (
	plain kind = ""
	title kind = "title"
	label kind = "label"
	typed kind = "typed" // by the reader, to try the same
	good  kind = "good"
	quiet kind = "quiet"
)

// escape is the kind's colour on a terminal.
func (k kind) escape() string {
	switch k {
	case title, typed:
		return "\033[1m"
	case label:
		return "\033[36m"
	case good:
		return "\033[32m"
	case quiet:
		return "\033[2m"
	}
	return ""
}

// span is a part of a line.
type span struct {
	kind kind
	text string
}

// write writes a line, over the one before if it replaces that. The caller holds mu.
func (s *screen) write(replace bool, line ...span) {
	if s.record != nil {
		s.record.line(replace, line)
	}
	var b strings.Builder
	if replace && s.terminal {
		b.WriteString("\033[A\033[2K")
	}
	for _, part := range line {
		if escape := part.kind.escape(); escape != "" && s.colored {
			b.WriteString(escape + part.text + "\033[0m")
		} else {
			b.WriteString(part.text)
		}
	}
	fmt.Fprintln(s.out, b.String())
}

func (s *screen) show(line ...span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bar = ""
	s.write(false, line...)
}

func (s *screen) chapter(text string) {
	s.show()
	s.show(span{title, "== " + text})
}

// say tells what happened, and what it happened to.
func (s *screen) say(what, format string, args ...any) {
	s.show(span{label, fmt.Sprintf("   %-10s ", what)}, span{plain, fmt.Sprintf(format, args...)})
}

// command is what a reader can type as well.
func (s *screen) command(format string, args ...any) {
	s.show(span{quiet, "   $ "}, span{typed, fmt.Sprintf(format, args...)})
}

// output is a line of what a command prints.
func (s *screen) output(line string) { s.show(span{plain, "   " + line}) }

// figure is shown now and again in the summary.
func (s *screen) figure(what string, d time.Duration) {
	took := fmt.Sprintf("%.1f s", d.Seconds())
	s.show(span{good, fmt.Sprintf("   %s after %s", what, took)})
	s.figures = append(s.figures, fmt.Sprintf("%-10s %s", what, took))
}

func summary(_ context.Context, m *machine) error {
	m.screen.chapter("Done")
	for _, f := range m.screen.figures {
		m.screen.output(f)
	}
	m.screen.output("Nothing is left behind.")
	return nil
}

// event shows what the agent does, as far as the story needs it.
func (s *screen) event(e control.Event) {
	switch e.Kind {
	case control.DocumentVerified:
		s.say("verified", "deployment document, %d bytes, %s", e.Progress.Done, short(e.Digest))
	case control.ManifestAccepted:
		s.say("accepted", "desired state, version %d", e.Version)
	case control.ManifestRefused:
		s.say("refused", "%s", e.Text)
	case control.PackageVerified:
		s.say("verified", "Compose package, %d bytes, %s", e.Progress.Done, short(e.Digest))
	case control.Transfer:
		s.progress(e.Progress)
	case control.DeploymentChanged:
		if e.Error != nil {
			s.say("failed", "%s: %s", e.Error.Code, e.Error.Message)
		}
	case control.ServiceChanged:
		if container, started := strings.CutPrefix(e.Text, "start container "); started {
			s.say("started", "container %s", container)
		} else if container, stopped := strings.CutPrefix(e.Text, "stop container "); stopped {
			s.say("stopped", "the former container %s", container)
		}
	case control.ReportDelivered:
		s.say("reported", "to the WFM: %s", e.State)
	}
}

const (
	// barWidth is how many characters a full bar has.
	barWidth = 20
	// worthABar is how many bytes are.
	worthABar = 4 << 20
)

// progress draws a bar: over and over on a terminal, a line per quarter elsewhere.
func (s *screen) progress(p *control.Progress) {
	if p.Total < worthABar {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	again := p.Object == s.bar
	if quarter := 4 * p.Done / p.Total; !s.terminal && again && quarter == s.step {
		return
	} else {
		s.step = quarter
	}
	s.bar = p.Object
	full := int(barWidth * p.Done / p.Total)
	const million = 1e6
	s.write(
		again && s.terminal,
		span{label, fmt.Sprintf("   %-10s ", "pulling")}, span{plain, shortObject(p.Object) + " ["},
		span{good, strings.Repeat("#", full)}, span{quiet, strings.Repeat(".", barWidth-full)},
		span{plain, fmt.Sprintf("] %.1f of %.1f MB", float64(p.Done)/million, float64(p.Total)/million)},
	)
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
