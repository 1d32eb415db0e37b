package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/runtime/registry"
)

const (
	piece = 256 << 10 // bytes that are written to containerd at a time

	// lockedTime bounds another writer's hold on a part, such as a killed process's.
	lockedTime = 30 * time.Second
)

// part downloads a blob or manifest into the content store, continuing the last attempt.
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
	stale := false // the partial download is of no use
	return p.session.try(ctx, p.o.Logger, func(h host) error {
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

// fetch downloads the rest of a part from one host, or all of it if stale, and counts the bytes.
func (p *pull) fetch(ctx context.Context, h host, desc v1.Descriptor, has *run, stale *bool, receive receiver) error {
	// A writer of containerd's client ends only with its context, even when closed.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waited := time.AfterFunc(lockedTime, cancel)
	w, err := content.OpenWriter(ctx, p.o.Client.ContentStore(), content.WithRef(remotes.MakeRefKey(ctx, desc)), content.WithDescriptor(desc))
	waited.Stop()
	if errdefs.IsAlreadyExists(err) {
		has.reached(desc.Size)
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close() // keeps the partial download
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

// counted is a counting reader of a host's content.
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

// begun is how much of a part former attempts have downloaded.
func (p *pull) begun(ctx context.Context, desc v1.Descriptor) int64 {
	status, err := p.o.Client.ContentStore().Status(ctx, remotes.MakeRefKey(ctx, desc))
	if err != nil {
		return 0
	}
	return status.Offset
}

const (
	// DefaultMinRate, in bytes a minute, keeps a slot while others wait: a quarter of GPRS's rate.
	DefaultMinRate = 16 << 10

	rateWindow = time.Minute
	slowMemory = 10 // windows for which a registry is known to be slow
)

// once admits one holder of a kind at a time.
func once() limit.Bound {
	return limit.Bound{Most: 1, Counts: func(held, wanted limit.Key) bool { return held.Kind != "" && held.Kind == wanted.Kind }}
}

// newSlots bounds the downloads. A registry has a number of slots, and all together one more, so that a
// registry which holds all of its own leaves one to others. A kind, such as a digest, has one at a time.
func newSlots(perRegistry int, window time.Duration) *limit.Limiter {
	return limit.New(slowMemory*window, once(),
		limit.Bound{Most: perRegistry, Counts: func(held, wanted limit.Key) bool { return held.Party != "" && held.Party == wanted.Party }},
		limit.Bound{Most: perRegistry + 1, Counts: func(held, wanted limit.Key) bool { return held.Party != "" && wanted.Party != "" }},
	)
}

// sameContent is the reason of a wait for no slot.
const sameContent = "waiting for another download of the same content"

var errSlotGiven = errors.New("its download slot was given to another download")

// receiver runs the part of a download that depends on the host alone, and counts its bytes.
type receiver func(receive func(ctx context.Context, came *atomic.Int64) error) error

// transfer runs a download with a key; "": it is not shared. do passes the part that depends on the
// host to the receiver: only that is timed. After each loss of the slot, do is called again later
// and continues.
func (h host) transfer(ctx context.Context, key string, run *run, do func(context.Context, receiver) error) error {
	defer run.end()
	for {
		if err := h.attempt(ctx, key, run, do); !errors.Is(err, errSlotGiven) {
			return err
		}
	}
}

// attempt is transfer while the slot is held. It ends when nothing comes, or, with less than the floor,
// when others wait for the slot or other hosts may be faster.
func (h host) attempt(ctx context.Context, key string, run *run, do func(context.Context, receiver) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wanted := limit.Key{Kind: key}
	why := sameContent
	if h.network {
		wanted.Party = h.name
		why = "waiting for a download slot: registry " + h.name
	}
	slot, err := h.images.slots.Acquire(ctx, wanted, func() { cancel(errSlotGiven) }, func(slow bool) { run.note(why, !slow) })
	if err != nil {
		return err
	}
	defer slot.Release()
	run.note("", false)
	told := func(perMinute int64, slow bool) {
		if !slow {
			run.note("", false)
			return
		}
		why := fmt.Errorf("registry %s sends %d bytes a minute, less than the minimum of %d", h.name, perMinute, h.images.rate.Floor)
		run.note(why.Error(), false)
		if h.others {
			cancel(remote{why})
		}
	}
	err = do(ctx, func(receive func(context.Context, *atomic.Int64) error) error {
		var came atomic.Int64
		if !h.network {
			return receive(ctx, &came)
		}
		watching, done := context.WithCancel(ctx)
		var watch sync.WaitGroup
		watch.Go(func() {
			if err := h.images.rate.Watch(watching, slot, &came, told); err != nil {
				cancel(remote{fmt.Errorf("registry %s: %w", h.name, err)})
			}
		})
		err := receive(registry.WithCounter(ctx, &came), &came)
		done()
		watch.Wait()
		if err == nil { // the rest does not wait for others
			slot.Spare(false)
			run.note("", false)
		}
		return err
	})
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errSlotGiven) || errors.As(cause, new(remote))) {
		return cause
	}
	return err
}
