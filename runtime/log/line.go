package log

import (
	"bytes"
	"encoding/json"
	"time"
	"unicode/utf8"
)

const (
	Stdout = "stdout"
	Stderr = "stderr"
)

const (
	// maxText is where a line is split, as in Docker.
	maxText = 16 << 10
	// maxLine is the longest line of a file: each byte may become an escape of six.
	maxLine = 6*maxText + 256
	// Limits on a joined line, and roughly on unfinished lines in a Merge per stream.
	maxJoined = 1 << 20
	maxHeld   = 4 << 20
)

// unfinished marks a line that is not complete yet.
const unfinished = " [the line goes on]\n"

// Entry is a line that a container printed, or a part of one longer than 1 MiB.
type Entry struct {
	Source string    // of the source
	Stream string    // Stdout or Stderr; empty: unknown
	Time   time.Time // zero: unknown
	Text   []byte    // with its newline, if any; valid until the next entry
}

// isPart reports whether more of the line follows: a line of a file is split at this length.
func isPart(e Entry) bool {
	return len(e.Text) > maxText-utf8.UTFMax && e.Text[len(e.Text)-1] != '\n'
}

// appendEntry appends a line of a log file: {"log":"text\n","stream":"stdout","time":"..."}.
func appendEntry(b []byte, stream string, text []byte, at time.Time) []byte {
	b = append(b, `{"log":"`...)
	b = appendEscaped(b, text)
	b = append(b, `","stream":"`...)
	b = append(b, stream...)
	b = append(b, `","time":"`...)
	b = at.UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, "\"}\n"...)
}

// appendEscaped appends text as part of a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendEscaped(b, text []byte) []byte {
	const hex = "0123456789abcdef"
	for i := 0; i < len(text); {
		c := text[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRune(text[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				b = append(b, `\ufffd`...)
			case r == '\u2028' || r == '\u2029': // some readers take them for newlines
				b = append(b, `\u202`...)
				b = append(b, hex[r&0xf])
			default:
				b = append(b, text[i:i+size]...)
			}
			i += size
			continue
		}
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		default:
			b = append(b, c)
		}
		i++
	}
	return b
}

// parseEntry parses a line of a log file. An invalid one is shown as text, not dropped.
func parseEntry(line []byte) Entry {
	var e struct {
		Log    *string   `json:"log"`
		Stream string    `json:"stream"`
		Time   time.Time `json:"time"`
	}
	if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &e) != nil || e.Log == nil {
		return Entry{Text: line}
	}
	if e.Stream != Stderr {
		e.Stream = Stdout
	}
	return Entry{Stream: e.Stream, Time: e.Time, Text: []byte(*e.Log)}
}
