package logrus

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// TextFormatter writes lines of key=value.
type TextFormatter struct {
	TimestampFormat string // of package time; RFC 3339 if empty
	FullTimestamp   bool   // always; the original leaves it out on terminals
}

// JSONFormatter writes text, too. Nobody here asks for JSON.
type JSONFormatter = TextFormatter

// Format makes the line of an entry. It never fails.
func (f *TextFormatter) Format(e *Entry) ([]byte, error) {
	format := f.TimestampFormat
	if format == "" {
		format = time.RFC3339
	}
	line := append(appendText(nil, "time", e.Time.Format(format)), " level="+e.Level.String()...)
	if e.Message != "" {
		line = appendText(line, "msg", e.Message)
	}
	for _, key := range slices.Sorted(maps.Keys(e.Data)) {
		value := e.Data[key]
		switch key {
		case "time", "level", "msg":
			key = "fields." + key
		}
		line = appendText(line, key, fmt.Sprint(value))
	}
	return append(line, '\n'), nil
}

// appendText appends key=text, quoted unless all of it is plain.
func appendText(line []byte, key, text string) []byte {
	if len(line) > 0 {
		line = append(line, ' ')
	}
	line = append(append(line, key...), '=')
	if strings.IndexFunc(text, special) >= 0 {
		return strconv.AppendQuote(line, text)
	}
	return append(line, text...)
}

func special(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune("-._/@^+", r)
}
