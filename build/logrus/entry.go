package logrus

import (
	"context"
	"fmt"
	"maps"
	"os"
	"time"
)

// Entry is a message, or what it will be about. Its methods leave it as it is.
type Entry struct {
	Logger  *Logger
	Data    Fields
	Time    time.Time // when, or zero for now
	Level   Level
	Message string
	Context context.Context // for hooks
}

func (e *Entry) dup() *Entry {
	dup := &Entry{Logger: e.Logger, Data: maps.Clone(e.Data), Time: e.Time, Context: e.Context}
	if dup.Data == nil {
		dup.Data = Fields{}
	}
	return dup
}

// WithContext returns an Entry with a context for hooks.
func (e *Entry) WithContext(ctx context.Context) *Entry {
	dup := e.dup()
	dup.Context = ctx
	return dup
}

// WithError returns an Entry with the field error.
func (e *Entry) WithError(err error) *Entry { return e.WithField("error", err) }

// WithField returns an Entry with one more field.
func (e *Entry) WithField(key string, value any) *Entry {
	dup := e.dup()
	dup.Data[key] = value
	return dup
}

// WithFields returns an Entry with more fields.
func (e *Entry) WithFields(fields Fields) *Entry {
	dup := e.dup()
	maps.Copy(dup.Data, fields)
	return dup
}

// Trace logs.
func (e *Entry) Trace(args ...any) { e.log(TraceLevel, args) }

// Debug logs.
func (e *Entry) Debug(args ...any) { e.log(DebugLevel, args) }

// Info logs.
func (e *Entry) Info(args ...any) { e.log(InfoLevel, args) }

// Warn logs.
func (e *Entry) Warn(args ...any) { e.log(WarnLevel, args) }

// Warning does what Warn does.
func (e *Entry) Warning(args ...any) { e.log(WarnLevel, args) }

// Error logs.
func (e *Entry) Error(args ...any) { e.log(ErrorLevel, args) }

// Fatal logs, and ends the process.
func (e *Entry) Fatal(args ...any) {
	e.log(FatalLevel, args)
	os.Exit(1)
}

// Tracef logs.
func (e *Entry) Tracef(format string, args ...any) { e.logf(TraceLevel, format, args) }

// Debugf logs.
func (e *Entry) Debugf(format string, args ...any) { e.logf(DebugLevel, format, args) }

// Infof logs.
func (e *Entry) Infof(format string, args ...any) { e.logf(InfoLevel, format, args) }

// Warnf logs.
func (e *Entry) Warnf(format string, args ...any) { e.logf(WarnLevel, format, args) }

// Warningf does what Warnf does.
func (e *Entry) Warningf(format string, args ...any) { e.logf(WarnLevel, format, args) }

// Errorf logs.
func (e *Entry) Errorf(format string, args ...any) { e.logf(ErrorLevel, format, args) }

func (e *Entry) log(level Level, args []any) {
	if e.Logger.IsLevelEnabled(level) {
		e.write(level, fmt.Sprint(args...))
	}
}

func (e *Entry) logf(level Level, format string, args []any) {
	if e.Logger.IsLevelEnabled(level) {
		e.write(level, fmt.Sprintf(format, args...))
	}
}

func (e *Entry) write(level Level, message string) {
	dup := e.dup() // which hooks may change
	dup.Level, dup.Message = level, message
	if dup.Time.IsZero() {
		dup.Time = time.Now()
	}
	e.Logger.write(dup)
}
