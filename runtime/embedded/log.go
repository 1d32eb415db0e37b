package embedded

import (
	"context"
	"io"
	"log/slog"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// forwardLog sends containerd's log to ours, one level lower except for warnings and errors. The one
// logger of the process is changed, not replaced: remains of a former server may be using it.
func forwardLog(to *slog.Logger) {
	logger := log.L.Logger
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.WarnLevel) // also the level that shims are started with
	if to.Enabled(context.Background(), slog.LevelDebug) {
		logger.SetLevel(logrus.InfoLevel)
	}
	hooks := make(logrus.LevelHooks)
	hooks.Add(forwarder{to})
	logger.ReplaceHooks(hooks)
}

// quiet are messages above info that report nothing wrong.
var quiet = map[string]bool{
	"failed check for fsverity support": true, // at each start, on most file systems
	"copy shim log":                     true, // at the end of a container, whose log pipe closes while it is read
}

type forwarder struct{ to *slog.Logger }

func (forwarder) Levels() []logrus.Level { return logrus.AllLevels }

func (f forwarder) Fire(e *logrus.Entry) error {
	ctx := e.Context
	if ctx == nil {
		ctx = context.Background()
	}
	level := slog.LevelDebug
	switch {
	case quiet[e.Message]:
	case e.Level <= logrus.ErrorLevel:
		level = slog.LevelError
	case e.Level == logrus.WarnLevel:
		level = slog.LevelWarn
	}
	attrs := make([]slog.Attr, 0, len(e.Data))
	for key, value := range e.Data {
		attrs = append(attrs, slog.Any(key, value))
	}
	f.to.LogAttrs(ctx, level, "containerd: "+e.Message, attrs...)
	return nil
}
