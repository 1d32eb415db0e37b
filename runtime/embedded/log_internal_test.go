package embedded

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/containerd/log"
)

// What containerd logs comes out of our logger alone, one level lower unless it is a warning or an error.
func TestLogIsForwarded(t *testing.T) {
	defer forwardLog(slog.New(slog.DiscardHandler))
	for level, want := range map[slog.Level]string{
		slog.LevelInfo: `level=ERROR msg="containerd: it fails" error="no space"
level=WARN msg="containerd: it may fail" id=a
`,
		slog.LevelDebug: `level=ERROR msg="containerd: it fails" error="no space"
level=WARN msg="containerd: it may fail" id=a
level=DEBUG msg="containerd: it starts"
level=DEBUG msg="containerd: copy shim log"
`,
	} {
		var got bytes.Buffer
		forwardLog(slog.New(slog.NewTextHandler(&got, &slog.HandlerOptions{
			Level: level,
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})))
		l := log.G(t.Context())
		l.WithError(errors.New("no space")).Error("it fails")
		l.WithField("id", "a").Warn("it may fail")
		l.Info("it starts")
		l.Debug("a detail")
		l.Warn("copy shim log")
		if got.String() != want {
			t.Errorf("with %v it logs\n%s\nand not\n%s", level, &got, want)
		}
	}
}
