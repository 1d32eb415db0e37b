// Package slog stands in for the one of the same name, whose levels containerd's
// log package translates.
package slog

import (
	"context"
	"log/slog"

	"github.com/sirupsen/logrus"
)

// Level is one of logrus, to be one of log/slog.
type Level logrus.Level

// Level of log/slog.
func (l Level) Level() slog.Level {
	switch logrus.Level(l) {
	case logrus.PanicLevel:
		return slog.LevelError + 4
	case logrus.FatalLevel:
		return slog.LevelError + 2
	case logrus.ErrorLevel:
		return slog.LevelError
	case logrus.WarnLevel:
		return slog.LevelWarn
	case logrus.InfoLevel:
		return slog.LevelInfo
	case logrus.DebugLevel:
		return slog.LevelDebug
	}
	return slog.LevelDebug - 4
}

// SlogLevel is one of log/slog, to be one of logrus.
type SlogLevel slog.Level

// Level of logrus: the lowest that is as important.
func (l SlogLevel) Level() logrus.Level {
	for _, level := range logrus.AllLevels {
		if slog.Level(l) >= Level(level).Level() {
			return level
		}
	}
	return logrus.TraceLevel
}

// Hook passes on what is logged.
type Hook struct{ to slog.Handler }

// HookOptions has none of them.
type HookOptions struct{}

// NewHook returns a Hook to a logger.
func NewHook(to *slog.Logger, _ *HookOptions) *Hook { return &Hook{to.Handler()} }

// Fire passes an entry on, where it is wanted.
func (h *Hook) Fire(e *logrus.Entry) error {
	ctx, level := e.Context, Level(e.Level).Level()
	if ctx == nil {
		ctx = context.Background()
	}
	if !h.to.Enabled(ctx, level) {
		return nil
	}
	record := slog.NewRecord(e.Time, level, e.Message, 0)
	for key, value := range e.Data {
		record.AddAttrs(slog.Any(key, value))
	}
	return h.to.Handle(ctx, record)
}
