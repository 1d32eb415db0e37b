package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/runtime/registry"
)

const (
	piece = 256 << 10 // bytes that are written to containerd at a time

	// How often, and how many times, it is looked whether somebody else still writes a part.
	lockedWait  = 100 * time.Millisecond
	lockedLooks = 300
	abortTries  = 10
)

// part downloads a blob or manifest into the content store, from where the last attempt has left off.
func (p *pull) part(ctx context.Context, desc v1.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return bad(err)
	}
	named, err := parse(p.name)
	if err != nil {
		return err
	}
	here, err := p.dropLost(ctx, desc)
	if err != nil {
		return err
	}
	has := tally{meter: p.meter}
	if here {
		err := p.hasAlready(ctx, desc, &has)
		if !errdefs.IsNotFound(err) {
			return err
		}
	}
	return p.session.try(ctx, p.log, func(h host) error {
		for {
			begun := p.begun(ctx, desc)
			err := h.transfer(ctx, "content "+desc.Digest.String(), p.meter, func(ctx context.Context, flow *limit.Flow) error {
				return p.fetch(ctx, h, named, desc, &has, flow)
			})
			refused := errors.Is(err, registry.ErrRange) // there are registries that cannot continue what they have begun
			switch {
			case err == nil:
				return nil
			case !refused && kindOf(err) != Garbled:
				return err
			}
			// What has come is of no use, and would be found again.
			if abortErr := p.abort(ctx, desc, &has); abortErr != nil || begun == 0 {
				return errors.Join(err, abortErr)
			}
		}
	})
}

// hasAlready has the lease hold a part that is in the content store.
func (p *pull) hasAlready(ctx context.Context, desc v1.Descriptor, has *tally) error {
	if err := p.keep(ctx, leases.Resource{ID: desc.Digest.String(), Type: "content"}); err != nil {
		return err
	}
	if _, err := p.client.ContentStore().Info(ctx, desc.Digest); err != nil {
		return err // it went before it was held
	}
	has.reached(desc.Size)
	return nil
}

// fetch downloads what is missing of a part from one host, and counts what comes.
func (p *pull) fetch(ctx context.Context, h host, in reference.Named, desc v1.Descriptor, has *tally, flow *limit.Flow) error {
	// A writer of containerd's client ends with its context alone, even when it is closed.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var w content.Writer
	var come int64
	err := flow.Local(func() (err error) { // containerd reads what has come
		w, come, err = p.writer(ctx, desc)
		return err
	})
	if errdefs.IsAlreadyExists(err) {
		has.reached(desc.Size)
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()     // what has come stays
	if desc.Size <= 0 { // containerd cannot keep what is empty
		return bad(fmt.Errorf("%s has an invalid size of %d bytes", desc.Digest, desc.Size))
	}
	has.reached(come)
	if come < desc.Size {
		body, err := h.Open(ctx, in, desc, come)
		if err != nil {
			return remote{err}
		}
		err = copyTo(w, counted{body, &p.came}, has)
		if err := errors.Join(err, body.Close()); err != nil {
			return err
		}
	}
	err = flow.Local(func() error { return w.Commit(ctx, desc.Size, desc.Digest) })
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot store %s: %w", desc.Digest, err)
	}
	return nil
}

// writer goes on with what has come of a part, and tells how much that is. It waits while somebody else does: a process
// that was killed may still be known to its containerd.
func (p *pull) writer(ctx context.Context, desc v1.Descriptor) (content.Writer, int64, error) {
	for n := 1; ; n++ {
		w, err := p.client.ContentStore().Writer(ctx, content.WithRef(remotes.MakeRefKey(ctx, desc)), content.WithDescriptor(desc))
		if err == nil {
			status, err := w.Status()
			if err != nil {
				return nil, 0, errors.Join(err, w.Close())
			}
			return w, status.Offset, nil
		}
		if !errdefs.IsUnavailable(err) || n == lockedLooks {
			return nil, 0, err
		}
		select {
		case <-time.After(lockedWait):
		case <-ctx.Done():
			return nil, 0, err
		}
	}
}

type counted struct {
	io.Reader
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// copyTo writes what comes, in pieces that are worth a call of containerd.
func copyTo(to io.Writer, from io.Reader, has *tally) error {
	buffer := make([]byte, piece)
	for {
		filled := 0
		var err error
		for filled < len(buffer) && err == nil {
			var n int
			n, err = from.Read(buffer[filled:])
			filled += n
		}
		if filled > 0 { // also of what breaks off then
			if _, err := to.Write(buffer[:filled]); err != nil {
				return fmt.Errorf("cannot store the download: %w", err)
			}
			has.reached(has.bytes + int64(filled))
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return remote{err}
		}
	}
}

// begun is how much of a part has come in former attempts.
func (p *pull) begun(ctx context.Context, desc v1.Descriptor) int64 {
	status, err := p.client.ContentStore().Status(ctx, remotes.MakeRefKey(ctx, desc))
	if err != nil {
		return 0
	}
	return status.Offset
}

// abort throws away what has come of a part. Behind a socket containerd closes the writer some time after we have, and
// cannot remove what is still written.
func (p *pull) abort(ctx context.Context, desc v1.Descriptor, has *tally) error {
	has.reached(0)
	for n := 1; ; n++ {
		err := p.client.ContentStore().Abort(ctx, remotes.MakeRefKey(ctx, desc))
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if n == abortTries || ctx.Err() != nil {
			return fmt.Errorf("cannot restart download: %w", err)
		}
		select {
		case <-time.After(lockedWait):
		case <-ctx.Done():
		}
	}
}
