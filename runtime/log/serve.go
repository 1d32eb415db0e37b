package log

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/runtime/v2/logging"
)

// verb is the first argument of a program that [KeeperURI] names; the second is a [URI].
const verb = "keep-log"

// drainTimeout limits the wait for pipes that a process left behind may hold open.
const drainTimeout = 2 * time.Second

// KeeperURI has a foreign shim start a program that calls [Serve] for each container.
func KeeperURI(program, path string, k Keep) string {
	return (&url.URL{Scheme: "binary", Path: program, RawQuery: verb + "=" + url.QueryEscape(URI(path, k))}).String()
}

// Serve keeps a log as the program of [KeeperURI] and ends the process. With any other
// arguments it returns.
func Serve(args []string) {
	if len(args) != 2 || args[0] != verb {
		return
	}
	logging.Run(func(ctx context.Context, from *logging.Config, ready func() error) error {
		path, keep, ok := ParseURI(args[1])
		if !ok {
			return fmt.Errorf("cannot keep log: %q names none", args[1])
		}
		w := NewWriter(path, keep)
		_ = w.Open() // retried with the first line; a container runs without a log, too
		var copying sync.WaitGroup
		copying.Go(func() { w.Copy(Stdout, from.Stdout) })
		copying.Go(func() { w.Copy(Stderr, from.Stderr) })
		done := make(chan struct{})
		go func() {
			copying.Wait()
			close(done)
		}()
		if err := ready(); err != nil {
			return err
		}
		select {
		case <-done:
			return nil
		case <-ctx.Done():
		}
		w.Unthrottle()
		select {
		case <-done:
		case <-time.After(drainTimeout):
		}
		return nil
	})
}
