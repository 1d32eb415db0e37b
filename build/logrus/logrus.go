// Package logrus stands in for the one of the same name, which compose-go warns
// with, and which containerd has behind its log package: 40 KB of each program on
// arm v7. This one has the calls that those make, and writes the lines that the
// original writes to files, also to terminals.
package logrus

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
)

// Fields say what a message is about.
type Fields map[string]any

// Hook hears of what is logged at some levels, before it is written.
type Hook interface {
	Levels() []Level
	Fire(*Entry) error
}

// LevelHooks are hooks by what they hear of.
type LevelHooks map[Level][]Hook

// Add lets a hook hear of its levels.
func (h LevelHooks) Add(hook Hook) {
	for _, level := range hook.Levels() {
		h[level] = append(h[level], hook)
	}
}

// Formatter makes the text of an entry.
type Formatter interface {
	Format(*Entry) ([]byte, error)
}

// Logger writes what is important enough. It is safe for concurrent use by its methods.
type Logger struct {
	Out io.Writer

	level     atomic.Uint32
	mu        sync.Mutex // guards what is below, and Out
	formatter Formatter
	hooks     LevelHooks
}

// New returns a Logger that writes to standard error from InfoLevel up.
func New() *Logger {
	l := &Logger{Out: os.Stderr, formatter: &TextFormatter{}, hooks: LevelHooks{}}
	l.SetLevel(InfoLevel)
	return l
}

// SetLevel says what is important enough.
func (l *Logger) SetLevel(level Level) { l.level.Store(uint32(level)) }

// GetLevel is what is important enough.
func (l *Logger) GetLevel() Level { return Level(l.level.Load()) }

// IsLevelEnabled says whether a level is important enough.
func (l *Logger) IsLevelEnabled(level Level) bool { return l.GetLevel() >= level }

// SetOutput says where to write.
func (l *Logger) SetOutput(out io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Out = out
}

// SetFormatter says who makes the text that is written.
func (l *Logger) SetFormatter(f Formatter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.formatter = f
}

// AddHook adds one to those that hear of what is logged.
func (l *Logger) AddHook(hook Hook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hooks := LevelHooks{} // those that were there may be running
	for level, those := range l.hooks {
		hooks[level] = append([]Hook(nil), those...)
	}
	hooks.Add(hook)
	l.hooks = hooks
}

// ReplaceHooks says who hears of what is logged, and returns who did before.
func (l *Logger) ReplaceHooks(hooks LevelHooks) LevelHooks {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.hooks
	l.hooks = hooks
	return before
}

// SetNoLock has no effect: the lock is cheap.
func (l *Logger) SetNoLock() {}

// write shows an entry to hooks and writes it. That something fails can be said
// nowhere else: whoever logs goes on.
func (l *Logger) write(e *Entry) {
	l.mu.Lock()
	hooks, formatter := l.hooks[e.Level], l.formatter
	l.mu.Unlock()
	for _, hook := range hooks {
		if hook.Fire(e) != nil {
			break
		}
	}
	text, err := formatter.Format(e)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.Out.Write(text)
}

var std = New()

// StandardLogger is the one that functions of the package log to.
func StandardLogger() *Logger { return std }

// SetOutput says where the standard logger writes.
func SetOutput(out io.Writer) { std.SetOutput(out) }

// WithField returns an Entry of the standard logger.
func WithField(key string, value any) *Entry { return entry().WithField(key, value) }

// WithFields returns an Entry of the standard logger.
func WithFields(fields Fields) *Entry { return entry().WithFields(fields) }

// Warn logs to the standard logger.
func Warn(args ...any) { entry().Warn(args...) }

// Warning does what Warn does.
func Warning(args ...any) { entry().Warn(args...) }

// Warnf logs to the standard logger.
func Warnf(format string, args ...any) { entry().Warnf(format, args...) }

func entry() *Entry { return &Entry{Logger: std} }
