package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/fault"
)

const (
	// expansion estimates the unpacked size of a layer whose manifest does not tell: two to three
	// times for most, more for text. It errs low: a layer that grows beyond is abandoned, which
	// only costs time, while one wrongly refused never comes.
	expansion = 2
	// uncompressedSize is the annotation by which some builders tell.
	uncompressedSize = "io.containers.estargz.uncompressed-size"
	// bytesAFile is the average unpacked file's size, rounded up: most layers have smaller ones.
	bytesAFile = 64 << 10
	// filesALayer are containerd's own: the download and its directory, and those of a snapshot.
	filesALayer = 8

	// spaceLook is the longest interval of looks at the space while images come, for other
	// writers; the less space, the shorter, down to shortestLook.
	spaceLook     = 100 * time.Millisecond
	shortestLook  = 2 * time.Millisecond
	fastestMedium = 2 << 30 // bytes a second
	halfReserve   = 2
	// rewrites times the free space bounds a layer, which counts small and repeated files in full.
	rewrites = 4

	maxNamed    = 8  // images that an error names
	maxRefusals = 64 // that are remembered
)

// NoSpaceError says that images do not fit, not that a disk was found full.
type NoSpaceError struct {
	Dir      string // on the file system that is too small
	Files    bool   // too few files, not bytes, are free
	Needed   int64  // downloaded and unpacked; how big images become is an estimate
	Free     int64
	Reserved int64    // of those that are free, for others
	Images   []string // as they were asked for

	grown bool // how much they need is not known: more than there was for them
}

func (e *NoSpaceError) Error() string {
	names := strings.Join(e.Images[:min(len(e.Images), maxNamed)], ", ")
	if more := len(e.Images) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d others", more)
	}
	needed := "about " + e.amount(e.Needed)
	if e.grown {
		needed = "more than " + e.amount(e.Needed-1)
	}
	if len(e.Images) == 0 {
		return fmt.Sprintf("no space: %s are free in %s, but %s must remain", e.amount(e.Free), e.Dir, e.amount(e.Reserved))
	}
	return fmt.Sprintf("no space: %s need %s in %s, where %s are free, and %s are reserved",
		names, needed, e.Dir, e.amount(e.Free), e.amount(e.Reserved))
}

func (e *NoSpaceError) amount(n int64) string {
	switch {
	case e.Files:
		return strconv.FormatInt(n, 10) + " files"
	case n < 10<<20:
		return strconv.FormatInt((n+1<<10-1)>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n>>20, 10) + " MiB"
}

// Persists tells whether there still is no space. It only looks at the file system.
func (e *NoSpaceError) Persists() bool {
	now, kind := medium{dir: e.Dir}, inBytes
	if e.Files {
		kind = inFiles
	}
	return now.look() == nil && e.Needed > now.free[kind]-e.Reserved
}

// lacks is the error for images that need so much, or, if grown, at least so much.
func (m *medium) lacks(kind int, needed int64, grown bool, pulls []*pull) *fault.Error {
	e := &NoSpaceError{Dir: m.dir, Files: kind == inFiles, Needed: needed, Free: m.free[kind], Reserved: m.reserved[kind], grown: grown}
	object := "space"
	if len(pulls) > 0 {
		object = pulls[0].want.Ref
	}
	for _, p := range pulls {
		if !slices.Contains(e.Images, p.want.Ref) {
			e.Images = append(e.Images, p.want.Ref)
		}
	}
	return &fault.Error{Code: fault.NoSpace, Object: object, Err: e}
}

// outgrew is the error when downloads took too much. It persists until there is more space.
func (m *medium) outgrew(now *medium, kind int, pulls []*pull) *fault.Error {
	return now.lacks(kind, m.spare(kind)+1, true, pulls)
}

type room struct {
	media  []medium
	layers int // that are still to be unpacked
}

// makeRoom fails if the missing parts of the images do not fit. Images that would fit but for others
// being pulled wait for those, unless they are too slow.
func (i *Images) makeRoom(ctx context.Context, pulls []*pull) (found room, err error) {
	const why = "waiting for other images: there is no space for all at once"
	err = i.await(ctx, pulls, why, func() (beside bool, err error) {
		i.reserving.Lock()
		defer i.reserving.Unlock()
		var others []*pull
		i.mu.Lock()
		for p, coming := range i.pulls {
			if coming {
				others = append(others, p)
			}
		}
		i.mu.Unlock()
		others = slices.DeleteFunc(others, func(p *pull) bool { return p.meter.isSlow() })
		if found, beside, err = i.fit(ctx, pulls, others); err != nil || !beside {
			return false, err
		}
		for _, p := range pulls {
			p.waiting.end() // before others see it, who do not wait for what is slow
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		for _, p := range pulls {
			i.pulls[p] = true
		}
		return true, nil
	})
	return found, err
}

// fit fails if the missing parts do not fit. beside: they do so together with those of others.
func (i *Images) fit(ctx context.Context, pulls, others []*pull) (found room, beside bool, err error) {
	if found.media, err = i.media(ctx); err != nil {
		return found, false, err
	}
	var missing need
	counted := make(map[digest.Digest]bool)
	add := func(more []*pull) error {
		for _, p := range more {
			if err := p.missing(ctx, counted, &missing); err != nil {
				return err
			}
		}
		for _, m := range found.media {
			for kind, n := range missing.on(m) {
				if n > 0 && n > m.spare(kind) {
					return m.lacks(kind, n, false, pulls)
				}
			}
		}
		return nil
	}
	if err := add(pulls); err != nil {
		return found, false, err
	}
	found.layers = missing.layers
	err = add(others)
	if errors.As(err, new(*NoSpaceError)) {
		return found, false, nil
	}
	return found, true, err
}

// Spare fails if too little of the reserve is left to make a container.
func (i *Images) Spare(ctx context.Context) error {
	return fail("space", i.checkReserve(ctx, nil))
}

// checkReserve fails if too little is left even for manifests, which containerd could not store.
func (i *Images) checkReserve(ctx context.Context, pulls []*pull) error {
	media, err := i.media(ctx)
	if err != nil {
		return err
	}
	_, err = check(media, pulls)
	return err
}

// need is what images lack.
type need struct {
	blobs, snapshots amounts
	layers           int   // to be unpacked
	beside           int64 // bytes
}

// on is what they lack on a file system.
func (n need) on(m medium) (all amounts) {
	for kind := range all {
		if m.blobs {
			all[kind] += n.blobs[kind]
		}
		if m.snapshots {
			all[kind] += n.snapshots[kind]
		}
	}
	if m.records {
		all[inBytes] += n.beside
	}
	return all
}

// missing adds what an image lacks, without parts already counted.
func (p *pull) missing(ctx context.Context, counted map[digest.Digest]bool, to *need) error {
	to.beside = max(to.beside, p.want.Beside)
	store := p.o.Client.ContentStore()
	snapshotter := p.o.Client.SnapshotService(p.snapshotter)
	for n, layer := range p.layers {
		if !counted[layer.Digest] {
			counted[layer.Digest] = true
			if _, err := store.Info(ctx, layer.Digest); errdefs.IsNotFound(err) {
				to.blobs[inBytes] += layer.Size - min(p.begun(ctx, layer), layer.Size)
				to.blobs[inFiles] += filesALayer
			} else if err != nil {
				return err
			}
		}
		chain := p.chains[n]
		if counted[chain] {
			continue
		}
		counted[chain] = true
		if _, err := snapshotter.Stat(ctx, chain.String()); errdefs.IsNotFound(err) {
			size := unpackedSize(ctx, layer)
			to.layers++
			to.snapshots[inBytes] += size
			to.snapshots[inFiles] += filesALayer + size/bytesAFile
		} else if err != nil {
			return err
		}
	}
	return nil
}

// unpackedSize is the unpacked bytes of a layer by the manifest, else estimated by compressed size.
func unpackedSize(ctx context.Context, layer v1.Descriptor) int64 {
	if packed, err := images.DiffCompression(ctx, layer.MediaType); err == nil && packed == "" {
		return layer.Size
	}
	told, err := strconv.ParseInt(layer.Annotations[uncompressedSize], 10, 64)
	if err == nil && told >= layer.Size && told <= maxLayer {
		return told
	}
	return layer.Size * expansion
}

// guardReserve, until ctx ends, stops pulls at half of the reserve, as estimates are not exact.
func guardReserve(ctx context.Context, media []medium, pulls []*pull) error {
	for {
		next, err := check(media, pulls)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// check fails below half of the reserve, and says when to look again. media are as before the images.
func check(media []medium, pulls []*pull) (next time.Duration, err error) {
	next = spaceLook
	for _, before := range media {
		now := before
		if now.look() != nil { // writing tells
			continue
		}
		for kind := range now.free {
			if now.free[kind] < now.reserved[kind]/halfReserve {
				return 0, before.outgrew(&now, kind, pulls)
			}
		}
		// In the time that the fastest medium needs to fill the free space.
		next = min(next, time.Duration(float64(now.spare(inBytes))/fastestMedium*float64(time.Second)))
	}
	return max(next, shortestLook), nil
}

// allowance is a containerd.Space: what one layer may write. Each spares the reserve and the estimates
// of others: a layer that outgrows its own estimate fails, and not those beside it.
type allowance struct {
	of       *Images // whose lock guards it
	medium   medium  // as it was before
	pulls    []*pull
	most     int64 // bytes that it may still write in all, also over what it wrote before
	estimate int64 // bytes, of what it has not written yet
	pending  int64 // bytes that it was given, and may not have written yet
}

// allow makes the allowance of a layer with an estimated size on a medium.
func (i *Images) allow(m medium, estimate int64, pulls ...*pull) *allowance {
	l := &allowance{of: i, medium: m, pulls: pulls, estimate: estimate, most: rewrites * m.spare(inBytes)}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unpacking[l] = true
	return l
}

func (l *allowance) end() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	delete(l.of.unpacking, l)
}

// Take fails if that would use the reserve, or what others need.
func (l *allowance) Take(bytes, files int64) error {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.pending = bytes // the entry before is written
	l.estimate = max(l.estimate-bytes, 0)
	if bytes > l.most {
		return l.refuse(&l.medium, inBytes)
	}
	l.most -= bytes
	now := l.medium
	if err := now.look(); err != nil {
		return err
	}
	spare := amounts{now.spare(inBytes), now.spare(inFiles)}
	for other := range l.of.unpacking {
		if other != l && other.medium.device == now.device {
			spare[inBytes] -= other.pending + other.estimate
		}
	}
	for kind, n := range (amounts{bytes, files}) {
		if n > 0 && n > spare[kind] {
			return l.refuse(&now, kind)
		}
	}
	return nil
}

func (l *allowance) refuse(now *medium, kind int) error {
	e := l.medium.outgrew(now, kind, l.pulls)
	e.Object, e.Err = "", fmt.Errorf("cannot unpack: %w", e.Err)
	return e
}

// Wrote counts written bytes.
func (l *allowance) Wrote(bytes int64) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.pending = max(l.pending-bytes, 0)
}

func refusalKey(pulls []*pull) (key string) {
	for _, p := range pulls {
		key += fmt.Sprintln(p.name, p.want.Platform, p.want.Beside)
	}
	return key
}

// refused is the error for images that did not fit before and still do not.
func (i *Images) refused(pulls []*pull) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var e *NoSpaceError
	if known := i.refusals[refusalKey(pulls)]; known != nil && errors.As(known, &e) && e.Persists() {
		return known
	}
	return nil
}

func (i *Images) remember(pulls []*pull, err error) {
	var known *fault.Error
	i.mu.Lock()
	defer i.mu.Unlock()
	if err == nil || len(i.refusals) >= maxRefusals {
		clear(i.refusals) // they may share layers with others
	}
	if errors.As(err, &known) && errors.As(err, new(*NoSpaceError)) {
		i.refusals[refusalKey(pulls)] = known
	}
}
