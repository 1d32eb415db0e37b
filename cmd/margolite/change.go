package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
)

func printChange(out io.Writer, d control.Deployment, now time.Time) {
	p := d.Change
	needed := waitsForApproval(p)
	revision := shortDigest(p.Revision)
	removal := map[string]string{"remove": ", which is removed"}[p.Kind]
	switch {
	case needed:
		fmt.Fprintf(out, "  waits for approval of revision %s%s\n", revision, removal)
	case p.Answer != "":
		fmt.Fprintf(out, "  %s: revision %s%s\n", p.Answer, revision, removal)
	default:
		fmt.Fprintf(out, "  %s of revision %s\n", nounOf(p.Kind), revision)
	}
	fmt.Fprint(out, waitsFor(p, "approval"))
	if p.Until.After(now) {
		fmt.Fprintf(out, "  will be applied in %s\n", ago(p.Until, now))
	}
	printDifference(out, d)
	if needed {
		fmt.Fprintf(out, "  margolite approve %s %s   (or reject)\n", d.ID, p.Revision)
	}
}

func nounOf(kind string) string {
	return cmp.Or(map[string]string{"install": "installation", "remove": "removal"}[kind], kind)
}

func printDifference(out io.Writer, d control.Deployment) {
	several := slices.ContainsFunc(d.Change.Services, func(s control.ServiceChange) bool { return s.Component != d.Change.Services[0].Component })
	w := table(out)
	for _, s := range d.Change.Services {
		name := s.Service
		if several {
			name = s.Component + "/" + name
		}
		for _, text := range linesOf(s) {
			fmt.Fprintf(w, "     %s\t%s\n", line(name), line(text))
			name = ""
		}
	}
	w.Flush()
	for _, v := range d.Change.Parameters {
		fmt.Fprintf(out, "     parameter %s\n", line(valueOf(v)))
	}
	if d.Change.Cut {
		fmt.Fprint(out, "     ... and more\n")
	}
}

func linesOf(s control.ServiceChange) []string {
	var lines []string
	if s.Change != "changed" {
		text := s.Change
		if s.Image != nil && s.Image.To != "" {
			text += ", image " + s.Image.To + inBrackets(sizeIn(s.Image.Bytes), shortDigest(s.Image.ToDigest))
		}
		lines = append(lines, text)
	} else if i := s.Image; i != nil {
		text := "image " + i.From
		if i.To != i.From {
			text += " -> " + i.To
		}
		lines = append(lines, text+inBrackets(sizeIn(i.Bytes), shortDigest(i.FromDigest)+" -> "+shortDigest(i.ToDigest)))
	}
	for _, v := range s.Environment {
		lines = append(lines, "environment "+valueOf(v))
	}
	for _, l := range []struct {
		what string
		list *control.ListChange
	}{{"port", s.Ports}, {"volume", s.Volumes}, {"privilege", s.Privileges}} {
		if l.list == nil {
			continue
		}
		for _, entry := range l.list.Removed {
			lines = append(lines, "- "+l.what+" "+entry)
		}
		for _, entry := range l.list.Added {
			lines = append(lines, "+ "+l.what+" "+entry)
		}
	}
	if len(s.Other) > 0 {
		lines = append(lines, "other "+strings.Join(s.Other, ", "))
	}
	return lines
}

func valueOf(v control.ValueChange) string {
	switch {
	case v.From == nil && v.To == nil:
		return v.Name
	case v.From == nil:
		return v.Name + ": + " + quoted(*v.To)
	case v.To == nil:
		return v.Name + ": - " + quoted(*v.From)
	case *v.From == *v.To: // neither is shown
		return v.Name + ": " + *v.To
	}
	return v.Name + ": " + quoted(*v.From) + " -> " + quoted(*v.To)
}

func quoted(value string) string {
	if value == control.Hidden {
		return value
	}
	return strconv.Quote(value)
}

func inBrackets(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" || s == " -> " })
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func sizeIn(bytes int64) string {
	if bytes <= 0 {
		return ""
	}
	return bytesIn(bytes)
}

func shortDigest(digest string) string {
	algorithm, hex, found := strings.Cut(digest, ":")
	if !found || len(hex) <= 12 {
		return digest
	}
	return algorithm + ":" + hex[:12]
}

// line makes untrusted text part of one line.
func line(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(plain(text))
}
