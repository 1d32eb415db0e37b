package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
)

const redrawPause = 50 * time.Millisecond

// progress shows what happens to a project: on a terminal one line per object, updated in place;
// otherwise one line per finished step.
type progress struct {
	out      io.Writer
	terminal bool

	lines []progressLine
	drawn int // lines on the terminal
	last  time.Time
}

type progressLine struct {
	kind, name, state string
	bytes             *control.Progress // of an image
}

func (c *cli) newProgress(quiet bool) *progress {
	if quiet {
		return &progress{out: io.Discard}
	}
	return &progress{out: c.err, terminal: isTerminal(c.err)}
}

func (p *progress) event(e control.Event) {
	switch {
	case e.Kind == control.Warning:
		p.say(e.Text)
	case e.Progress != nil:
		p.transfer(*e.Progress)
	case e.Text != "" && p.terminal:
		p.step(e.Text, e.State == control.Begun)
	case e.Text != "" && e.State != control.Begun:
		p.say(e.Text)
	}
}

func (p *progress) say(text string) {
	p.pulled()
	p.erase()
	fmt.Fprintln(p.out, indented(text))
	p.draw()
}

func (p *progress) transfer(t control.Progress) {
	l := p.line("Image", t.Object)
	if !p.terminal && l.bytes == nil {
		fmt.Fprintf(p.out, "pulling %s\n", t.Object)
	}
	if p.terminal || l.bytes == nil {
		l.state = "Pulling"
	}
	l.bytes = &t
	if time.Since(p.last) >= redrawPause {
		p.draw()
	}
}

// pulled marks the transfers as done, when something else begins.
func (p *progress) pulled() {
	for i := range p.lines {
		l := &p.lines[i]
		if l.state != "Pulling" {
			continue
		}
		l.state = "Pulled"
		if !p.terminal {
			fmt.Fprintf(p.out, "pulled %s, %s\n", l.name, bytesIn(l.bytes.Done))
		}
	}
}

// downStep is reported by compose down, for which the engine reports no steps.
const downStep = "remove container"

// steps are the engine's steps in the words of docker compose. Others are not shown on a terminal.
var steps = []struct {
	prefix            runtime.Kind
	kind, begun, done string
}{
	{runtime.EnsureNetwork, "Network", "Creating", "Created"},
	{runtime.RemoveNetwork, "Network", "Removing", "Removed"},
	{runtime.CreateContainer, "Container", "Creating", "Created"},
	{runtime.StartContainer, "Container", "Starting", "Started"},
	{runtime.StopContainer, "Container", "Stopping", "Stopped"},
	{runtime.DeleteContainer, "Container", "Removing", "Removed"},
	{downStep, "Container", "Removing", "Removed"},
}

func (p *progress) step(text string, begun bool) {
	p.pulled()
	if text == "settle" {
		for i := range p.lines {
			if l := &p.lines[i]; l.kind == "Container" && l.state == "Started" {
				l.state = "Waiting"
			}
		}
	}
	for _, s := range steps {
		name, found := strings.CutPrefix(text, string(s.prefix))
		name = strings.TrimSpace(name)
		if !found || name == "" {
			continue
		}
		l := p.line(s.kind, name)
		if l.state = s.done; begun {
			l.state = s.begun
		}
	}
	p.draw()
}

func (p *progress) line(kind, name string) *progressLine {
	for i := range p.lines {
		if p.lines[i].kind == kind && p.lines[i].name == name {
			return &p.lines[i]
		}
	}
	p.lines = append(p.lines, progressLine{kind: kind, name: name})
	return &p.lines[len(p.lines)-1]
}

func (p *progress) finish(err error) {
	if err == nil {
		p.pulled()
		for i := range p.lines {
			if l := &p.lines[i]; l.state == "Waiting" {
				l.state = "Running"
			}
		}
	}
	p.draw()
	p.drawn = 0
}

func (p *progress) erase() {
	if p.drawn > 0 {
		fmt.Fprintf(p.out, "\x1b[%dA\x1b[J", p.drawn)
	}
	p.drawn = 0
}

// draw replaces the shown lines. A small terminal omits the first ones, which change less.
func (p *progress) draw() {
	if !p.terminal || len(p.lines) == 0 {
		return
	}
	p.last = time.Now()
	size := terminalSize(p.out)
	if size.Columns < 20 || size.Rows < 2 {
		size = control.Size{Columns: 80, Rows: 24}
	}
	lines := p.lines[max(0, len(p.lines)-int(size.Rows)+1):]
	width := 0
	for _, l := range lines {
		width = max(width, len(l.name))
	}
	var picture bytes.Buffer
	if p.drawn > 0 {
		fmt.Fprintf(&picture, "\x1b[%dA", p.drawn)
	}
	for _, l := range lines {
		text := fmt.Sprintf(" %-9s  %-*s  %s", l.kind, width, l.name, l.state)
		if l.state == "Pulling" {
			text += " " + bytesOf(l.bytes)
		}
		fmt.Fprintf(&picture, "%.*s\x1b[K\n", int(size.Columns)-1, text)
	}
	picture.WriteString("\x1b[J")
	p.drawn = len(lines)
	_, _ = p.out.Write(picture.Bytes()) // a failed display is no failure of the project
}
