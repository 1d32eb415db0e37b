package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/fault"
)

const (
	piece = 256 << 10 // bytes that are written to containerd at a time

	// lockedTime is how long somebody else may still write a part: a process that was killed may still be known to its
	// containerd.
	lockedTime = 30 * time.Second
)

// part downloads a blob or manifest into the content store, from where the last attempt has left off.
func (p *pull) part(ctx context.Context, desc v1.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return bad(err)
	}
	has := run{of: p.meter}
	here, err := p.isHere(ctx, desc)
	if err != nil {
		return err
	}
	if here {
		has.reached(desc.Size)
		return nil
	}
	stale := false // what has come is of no use
	return p.session.try(ctx, p.log, func(h host) error {
		for {
			resumed := !stale && p.begun(ctx, desc) > 0
			err := h.transfer(ctx, "content "+desc.Digest.String(), &has, func(ctx context.Context, receive receiver) error {
				return p.fetch(ctx, h, desc, &has, &stale, receive)
			})
			if err == nil || codeOf(err) != fault.Garbled {
				return err
			}
			if stale = true; !resumed {
				return err
			}
		}
	})
}

// fetch downloads what is missing of a part from one host, all of it where that is stale, and counts what comes.
func (p *pull) fetch(ctx context.Context, h host, desc v1.Descriptor, has *run, stale *bool, receive receiver) error {
	// A writer of containerd's client ends with its context alone, even when it is closed.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waited := time.AfterFunc(lockedTime, cancel)
	w, err := content.OpenWriter(ctx, p.client.ContentStore(), content.WithRef(remotes.MakeRefKey(ctx, desc)), content.WithDescriptor(desc))
	waited.Stop()
	if errdefs.IsAlreadyExists(err) {
		has.reached(desc.Size)
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close() // what has come stays
	if *stale {
		if err := w.Truncate(0); err != nil {
			return err
		}
		*stale = false
	}
	status, err := w.Status()
	if err != nil {
		return err
	}
	if desc.Size <= 0 { // containerd cannot keep what is empty
		return bad(fmt.Errorf("%s has an invalid size of %d bytes", desc.Digest, desc.Size))
	}
	has.reached(status.Offset)
	if status.Offset < desc.Size {
		err := receive(func(ctx context.Context, _ *atomic.Int64) error {
			body, err := h.Open(ctx, p.found, desc, status.Offset)
			if err != nil {
				return remote{err}
			}
			to := bufio.NewWriterSize(io.MultiWriter(w, has), piece)
			_, err = io.Copy(to, counted{body, &p.came})
			if flushErr := to.Flush(); err == nil { // also of what breaks off
				err = flushErr
			}
			if err != nil && !errors.As(err, new(remote)) {
				err = fmt.Errorf("cannot store the download: %w", err)
			}
			return errors.Join(err, body.Close())
		})
		if err != nil {
			return err
		}
	}
	err = w.Commit(ctx, desc.Size, desc.Digest)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot store %s: %w", desc.Digest, err)
	}
	return nil
}

// counted is what comes from a host.
type counted struct {
	io.Reader
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.bytes.Add(int64(n))
	if err != nil && err != io.EOF {
		err = remote{err}
	}
	return n, err
}

// begun is how much of a part has come in former attempts.
func (p *pull) begun(ctx context.Context, desc v1.Descriptor) int64 {
	status, err := p.client.ContentStore().Status(ctx, remotes.MakeRefKey(ctx, desc))
	if err != nil {
		return 0
	}
	return status.Offset
}
