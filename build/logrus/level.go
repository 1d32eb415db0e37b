package logrus

import (
	"fmt"
	"strings"
)

// Level is how important a message is, the lower the more.
type Level uint32

// The levels.
const (
	PanicLevel Level = iota
	FatalLevel
	ErrorLevel
	WarnLevel
	InfoLevel
	DebugLevel
	TraceLevel
)

// AllLevels are all of them.
var AllLevels = []Level{PanicLevel, FatalLevel, ErrorLevel, WarnLevel, InfoLevel, DebugLevel, TraceLevel}

// String is the name of the level.
func (l Level) String() string {
	switch l {
	case PanicLevel:
		return "panic"
	case FatalLevel:
		return "fatal"
	case ErrorLevel:
		return "error"
	case WarnLevel:
		return "warning"
	case InfoLevel:
		return "info"
	case DebugLevel:
		return "debug"
	case TraceLevel:
		return "trace"
	}
	return "unknown"
}

// ParseLevel returns the level of a name.
func ParseLevel(name string) (Level, error) {
	if strings.EqualFold(name, "warn") {
		return WarnLevel, nil
	}
	for _, level := range AllLevels {
		if strings.EqualFold(name, level.String()) {
			return level, nil
		}
	}
	return 0, fmt.Errorf("not a valid logrus Level: %q", name)
}
