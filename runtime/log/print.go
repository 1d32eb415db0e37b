package log

import "io"

// PrintOptions say how output is shown.
type PrintOptions struct {
	Names      []string // of the sources, for the width of the prefixes
	Prefix     bool     // the name of its source in front of each line: "web-1  | line"
	Timestamps bool     // its time in front of each line
	Color      bool     // prefixes in colours of a terminal
}

// Printer shows entries as text. Lines of different sources never mix: with
// prefixes, a part of a very long line is a line of its own.
type Printer struct {
	w      io.Writer
	o      PrintOptions
	width  int
	colors map[string]int // of sources, in the order in which they came
	line   []byte
	within map[string]bool // sources whose line goes on, without prefixes
}

// colors are those of ANSI that are seen on black and on white.
func colors() []string {
	return []string{"\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[96m", "\x1b[93m", "\x1b[92m", "\x1b[95m", "\x1b[94m"}
}

const noColor = "\x1b[0m"

// NewPrinter shows entries on w.
func NewPrinter(w io.Writer, o PrintOptions) *Printer {
	p := &Printer{w: w, o: o, colors: make(map[string]int), within: make(map[string]bool)}
	for _, name := range o.Names {
		p.width = max(p.width, len(name))
	}
	return p
}

// Print writes one entry, in one call.
func (p *Printer) Print(e Entry) error {
	ended := len(e.Text) > 0 && e.Text[len(e.Text)-1] == '\n'
	b := p.line[:0]
	if p.o.Prefix {
		b = p.appendPrefix(b, e.Source)
	}
	stream := e.Source + "\x00" + e.Stream
	if p.o.Timestamps && !e.Time.IsZero() && !p.within[stream] {
		b = e.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000000Z07:00")
		b = append(b, ' ')
	}
	b = append(b, e.Text...)
	if p.o.Prefix {
		if !ended {
			b = append(b, '\n')
		}
	} else if p.o.Timestamps {
		p.within[stream] = !ended
	}
	p.line = b
	_, err := p.w.Write(b)
	return err
}

func (p *Printer) appendPrefix(b []byte, name string) []byte {
	p.width = max(p.width, len(name))
	if p.o.Color {
		n, known := p.colors[name]
		if !known {
			n = len(p.colors)
			p.colors[name] = n
		}
		all := colors()
		b = append(b, all[n%len(all)]...)
	}
	b = append(b, name...)
	for range p.width - len(name) {
		b = append(b, ' ')
	}
	b = append(b, "  | "...)
	if p.o.Color {
		b = append(b, noColor...)
	}
	return b
}
