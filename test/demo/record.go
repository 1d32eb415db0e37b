package main

import (
	"fmt"
	"html"
	"os"
	"strings"
	"time"
)

// recording is what the screen showed, and when.
type recording struct {
	last   time.Time
	at     time.Duration
	rows   int
	frames []frame
}

// frame is a line that stands in a row from one moment on.
type frame struct {
	at   time.Duration
	row  int
	line []span
}

const (
	longest  = 800 * time.Millisecond // pause between two lines
	shortest = 60 * time.Millisecond
	ending   = 6 * time.Second // until it begins again
	window   = 26              // rows
	height   = 20              // of a row, in pixels
	inside   = 656             // pixels of 78 characters
	border   = 16
)

// line notes a line; on a screen of its own if it replaces none.
func (r *recording) line(replace bool, line []span) {
	now := time.Now()
	if replace && now.Sub(r.last) < shortest {
		r.frames[len(r.frames)-1].line = line // too soon to be seen
		return
	}
	if !r.last.IsZero() {
		r.at += min(max(now.Sub(r.last), shortest), longest)
	}
	r.last = now
	if !replace {
		r.rows++
	}
	r.frames = append(r.frames, frame{r.at, r.rows - 1, line})
}

// save writes an animated picture that runs in a page without any program.
func (r *recording) save(file string) error {
	all := r.at + ending
	percent := func(d time.Duration) string { return fmt.Sprintf("%.2f%%", 100*float64(d)/float64(all)) }
	var style, text, scroll strings.Builder
	top := 0
	for i, f := range r.frames {
		until := ""
		if i+1 < len(r.frames) && r.frames[i+1].row == f.row {
			until = percent(r.frames[i+1].at) + "{opacity:0}"
		}
		fmt.Fprintf(&style, "@keyframes f%d{0%%{opacity:0}%s{opacity:1}%s}", i, percent(f.at), until)
		if f.row-top >= window {
			top = f.row - window + 1
			fmt.Fprintf(&scroll, "%s{transform:translateY(%dpx)}", percent(f.at), -top*height)
		}
		still := ""
		if until != "" {
			still = ` class="gone"`
		}
		fmt.Fprintf(&text, `<text%s y="%d" style="animation-name:f%d">`, still, (f.row+1)*height-5, i)
		for _, part := range f.line {
			fmt.Fprintf(&text, `<tspan class="%s">%s</tspan>`, part.kind, html.EscapeString(part.text))
		}
		text.WriteString("</text>\n")
	}
	wide, high := inside+2*border, window*height+2*border
	return os.WriteFile(file, fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="make demo, recorded">
<!-- Written by make recording. -->
<style>
text,g{animation:%.1fs step-end infinite}text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d7dee6;white-space:pre}
g{animation-name:scroll;transform:translateY(%dpx)}.title{fill:#fff;font-weight:700}.typed{fill:#fff}.label{fill:#6fc3df}.good{fill:#7fd18b}.quiet{fill:#7d8b99}
@media (prefers-reduced-motion:reduce){text,g{animation:none}.gone{opacity:0}}
%s
@keyframes scroll{0%%{transform:none}%s}
</style>
<rect width="%d" height="%d" rx="10" fill="#17202a"/>
<svg x="16" y="16" width="%d" height="%d"><g>
%s</g></svg>
</svg>
`, wide, high, all.Seconds(), -top*height, style.String(), scroll.String(), wide, high, inside, window*height, text.String()), 0o644)
}
