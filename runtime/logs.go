package runtime

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/log"
)

// LogsRequest selects containers and a part of their output.
type LogsRequest struct {
	Project  string
	Services []string  // none: all
	Tail     int       // last lines of each container; 0: everything that is kept; less: nothing of the past
	Since    time.Time // zero: from the beginning
	Until    time.Time // zero: to the end
	Follow   bool      // go on until ctx is done or the project is gone, also with containers that come later
}

// LogLine is one line of output.
type LogLine struct {
	Replica Replica
	Time    time.Time // zero where the log has none
	Text    []byte    // with its end of line, if it has one; valid until the callback returns
}

// LogLines calls each for every line in the order of their times, from one goroutine.
func (e *Engine) LogLines(ctx context.Context, r LogsRequest, each func(LogLine) error) error {
	s := &logSources{e: e, r: r}
	s.merge = log.NewMerge(log.Options{Tail: r.Tail, Since: r.Since, Until: r.Until, Follow: r.Follow})
	if _, err := s.add(ctx); err != nil {
		return err
	}
	line := func(entry log.Entry) error {
		of, _ := s.replicas.Load(entry.Source)
		return each(LogLine{Replica: of.(Replica), Time: entry.Time, Text: entry.Text})
	}
	if !r.Follow {
		s.merge.Seal()
		return s.run(ctx, line)
	}

	group, ctx := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(ctx)
	group.Go(func() error {
		defer stop()
		return contain.Call(func() error { return s.run(ctx, line) })
	})
	group.Go(func() error { return contain.Call(func() error { return s.follow(watching) }) })
	return group.Wait()
}

type logSources struct {
	e     *Engine
	r     LogsRequest
	merge *log.Merge

	replicas sync.Map // Replica of each that was added, by the name of the source
}

func (s *logSources) run(ctx context.Context, each func(log.Entry) error) error {
	if err := s.merge.Run(ctx, each); err != nil {
		return fail(Internal, s.r.Project, err)
	}
	return nil
}

// add adds new containers; any: there are some at all. Of a replica, the running one comes first.
func (s *logSources) add(ctx context.Context) (any bool, err error) {
	all, err := s.e.ObserveProject(ctx, s.r.Project)
	if err != nil {
		return false, fail(Internal, s.r.Project, err)
	}
	for _, c := range all.Containers {
		if len(s.r.Services) > 0 && !slices.Contains(s.r.Services, c.Service) {
			continue
		}
		any = true
		if _, known := s.replicas.LoadOrStore(c.ID, c.Replica()); !known {
			s.merge.Add(log.Source{Name: c.ID, Path: s.e.containers.LogPath(c.ID)})
		}
	}
	return any, nil
}

func (s *logSources) follow(ctx context.Context) error {
	news := make(chan struct{}, 1)
	stop := s.e.projects.events.watch(ctx, logTopics, func(string) { poke(news) })
	defer stop()
	for {
		switch any, err := s.add(ctx); {
		case ctx.Err() != nil:
			return nil // the reader has ended
		case err != nil:
			return err
		case !any:
			s.merge.Seal()
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil
		}
	}
}
