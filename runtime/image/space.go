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
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/containerd"
)

const (
	// expansion is what unpacking makes of a compressed layer whose manifest does not tell: twice to three times for
	// most, more for text. It is rather too small: what turns out to be bigger is given up while it is unpacked, and
	// nothing is lost but time; what is refused wrongly never comes.
	expansion = 2
	// uncompressedSize is the annotation by which some builders tell.
	uncompressedSize = "io.containers.estargz.uncompressed-size"
	// bytesAFile is how big a file is that a layer unpacks to, on the average, and rather too big for the same reason:
	// most layers have four times as many.
	bytesAFile = 64 << 10
	// filesALayer are what containerd makes for itself: the download and its directory, and those of a snapshot.
	filesALayer = 8

	// DefaultReserve is what images leave free, and no more than a part of a small file system.
	DefaultReserve = 32 << 20
	reservePart    = 20 // one of 20
	reservedFiles  = 256

	// ext4 keeps one block of so many for itself, and at most so many blocks.
	ext4Part = 50
	ext4Most = 4096

	// spaceLook is how often the space is looked at while images come, and more often the less there is, down to
	// shortestLook, for what may be written meanwhile.
	spaceLook     = 100 * time.Millisecond
	shortestLook  = 2 * time.Millisecond
	fastestMedium = 2 << 30 // bytes a second
	halfReserve   = 2
	maxNamed      = 8 // images that an error names
)

// NoSpaceError says that images do not fit. The error of a disk that was full before anybody knew is another one of
// kind NoSpace.
type NoSpaceError struct {
	Dir      string // on the file system that is too small
	Needed   int64  // bytes that are missing, downloaded and unpacked; how big they become is an estimate
	Free     int64  // bytes that are free there
	Reserved int64  // bytes of those that images leave alone
	// The same in files, where they are what is missing: such a file system has a fixed number of them.
	NeededFiles, FreeFiles, ReservedFiles int64

	Images []string // as they were asked for

	reserve int64 // as it was configured
	grown   bool  // how much they need is not known: more than there was for them
}

func (e *NoSpaceError) Error() string {
	names := strings.Join(e.Images[:min(len(e.Images), maxNamed)], ", ")
	if more := len(e.Images) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d others", more)
	}
	switch {
	case e.NeededFiles > 0 && len(e.Images) == 0:
		return fmt.Sprintf("no space: %d more files can be created in %s, but %d must remain", e.FreeFiles, e.Dir, e.ReservedFiles)
	case e.NeededFiles > 0:
		return fmt.Sprintf("no space: %s would create about %d files in %s, where %d more are possible, %d of which are reserved",
			names, e.NeededFiles, e.Dir, e.FreeFiles, e.ReservedFiles)
	case len(e.Images) == 0:
		return fmt.Sprintf("no space: %s are free in %s, but %s must remain", amount(e.Free), e.Dir, amount(e.Reserved))
	case e.grown:
		return fmt.Sprintf("no space: %s need more than %s in %s, where %s are free, and %s are reserved",
			names, amount(e.Needed-1), e.Dir, amount(e.Free), amount(e.Reserved))
	}
	return fmt.Sprintf("no space: %s need about %s in %s, where %s are free, %s of which are reserved",
		names, amount(e.Needed), e.Dir, amount(e.Free), amount(e.Reserved))
}

// amount is a number of bytes for people.
func amount(n int64) string {
	if n < 10<<20 {
		return strconv.FormatInt((n+1<<10-1)>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n>>20, 10) + " MiB"
}

// Persists says that there still is no space. It looks at the file system and nothing else.
func (e *NoSpaceError) Persists() bool {
	m := medium{dir: e.Dir}
	if m.look(e.reserve) != nil {
		return false
	}
	return e.Needed > max(m.free-m.reserved, 0) || e.NeededFiles > max(m.freeFiles-m.reservedFiles, 0)
}

// look finds out what there is on a file system. A reserve of 0 is the usual one. What is kept for root counts: so do
// we, and whoever runs as root in a container.
func (m *medium) look(reserve int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir, &fs); err != nil {
		return fmt.Errorf("cannot determine the free space in %s: %w", m.dir, err)
	}
	block, free := int64(fs.Bsize), int64(fs.Bfree)
	if fs.Type == unix.EXT4_SUPER_MAGIC { // which counts what it keeps for itself as free
		free = max(free-min(int64(fs.Blocks)/ext4Part, ext4Most), 0)
	}
	m.free, m.reserved = free*block, reserve
	if reserve == 0 {
		m.reserved = min(DefaultReserve, int64(fs.Blocks)*block/reservePart)
	}
	m.files, m.freeFiles = int64(fs.Files), int64(fs.Ffree) // 0: it does not count them
	m.reservedFiles = min(reservedFiles, m.files/reservePart)
	return nil
}

// makeRoom fails when what is missing of the images does not fit. It returns the file systems that they come to. Images
// that would fit alone, and not beside others that are coming, wait for those; not for what comes too slowly.
func (i *Images) makeRoom(ctx context.Context, pulls []*pull) ([]medium, error) {
	waiting := make([]*run, len(pulls))
	for n, p := range pulls {
		waiting[n] = p.meter.begin()
	}
	defer endAll(waiting)
	for {
		media, fits, changed, err := i.tryRoom(ctx, pulls, waiting)
		if err != nil || fits {
			return media, err
		}
		for _, r := range waiting {
			r.note("waiting for other images: there is no space for all at once", true)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryRoom is one look whether images fit beside others, which ends their wait. Where they don't, changed is closed when
// that may have changed.
func (i *Images) tryRoom(ctx context.Context, pulls []*pull, waiting []*run) (media []medium, fits bool, changed <-chan struct{}, err error) {
	i.reserving.Lock()
	defer i.reserving.Unlock()
	i.mu.Lock()
	changed = i.changed
	others := slices.Clone(i.coming)
	i.mu.Unlock()
	others = slices.DeleteFunc(others, func(p *pull) bool { return p.meter.isSlow() })
	if media, err = i.fit(ctx, pulls); err != nil {
		return nil, false, nil, err
	}
	if len(others) > 0 {
		_, err = i.fit(ctx, slices.Concat(others, pulls))
		if errors.As(err, new(*NoSpaceError)) {
			return nil, false, changed, nil
		}
		if err != nil {
			return nil, false, nil, err
		}
	}
	endAll(waiting) // before they are seen by others, who do not wait for what is slow
	for _, p := range pulls {
		p.meter.onChange(i.spaceChanged)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.coming = append(i.coming, pulls...)
	return media, true, nil, nil
}

// spaceChanged wakes those who wait for space.
func (i *Images) spaceChanged() {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.changed)
	i.changed = make(chan struct{})
}

// fit fails when what is missing of the images does not fit.
func (i *Images) fit(ctx context.Context, pulls []*pull) ([]medium, error) {
	media, err := i.spaces(ctx)
	if err != nil {
		return nil, err
	}
	counted := make(map[digest.Digest]bool)
	var missing need
	for n, p := range pulls {
		if err := p.missing(ctx, counted, &missing); err != nil {
			return nil, err
		}
		for _, m := range media {
			if e := m.refuse(missing, i.reserve); e != nil {
				// How much all of them need is what helps.
				for _, rest := range pulls[n+1:] {
					if err := rest.missing(ctx, counted, &missing); err != nil {
						return nil, err
					}
				}
				e = m.refuse(missing, i.reserve)
				e.Images = refsOf(pulls)
				return nil, fail(p.want.Ref, &Error{Kind: NoSpace, Err: e})
			}
		}
	}
	return media, nil
}

// spaces are the file systems that images come to, and that of the agent's own records, as they are now.
func (i *Images) spaces(ctx context.Context) ([]medium, error) {
	media, err := i.media(ctx)
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if i.state != "" && unix.Stat(i.state, &stat) == nil {
		n := slices.IndexFunc(media, func(m medium) bool { return m.device == uint64(stat.Dev) })
		if n < 0 {
			n = len(media)
			media = append(media, medium{dir: i.state, device: uint64(stat.Dev)})
		}
		media[n].records = true
	}
	for n := range media {
		if err := media[n].look(i.reserve); err != nil {
			return nil, err
		}
	}
	return media, nil
}

// Spare fails where so little of the reserve is left that no container is to be made.
func (i *Images) Spare(ctx context.Context) error {
	err := i.checkReserve(ctx, nil)
	return fail("space", err)
}

// checkReserve fails where so little is left that not even manifests are to be fetched. containerd could not hold them.
func (i *Images) checkReserve(ctx context.Context, pulls []*pull) error {
	media, err := i.spaces(ctx)
	if err != nil {
		return err
	}
	return i.checkSpaces(media, pulls, halfReserve)
}

func refsOf(pulls []*pull) []string {
	var refs []string
	for _, p := range pulls {
		if !slices.Contains(refs, p.want.Ref) {
			refs = append(refs, p.want.Ref)
		}
	}
	return refs
}

// need is what images lack.
type need struct {
	blobs, snapshots int64 // bytes
	blobFiles        int64
	snapshotFiles    int64
	beside           int64 // bytes
}

// refuse is the error where the need does not fit; nil: it does.
func (m *medium) refuse(n need, reserve int64) *NoSpaceError {
	e := &NoSpaceError{Dir: m.dir, Free: m.free, Reserved: min(m.reserved, m.free), FreeFiles: m.freeFiles, ReservedFiles: m.reservedFiles, reserve: reserve}
	if m.blobs {
		e.Needed += n.blobs
		e.NeededFiles += n.blobFiles
	}
	if m.snapshots {
		e.Needed += n.snapshots
		e.NeededFiles += n.snapshotFiles
	}
	if m.records {
		e.Needed += n.beside
	}
	switch {
	case e.Needed > 0 && e.Needed > m.free-m.reserved:
		e.NeededFiles = 0
		return e
	case m.files > 0 && e.NeededFiles > 0 && e.NeededFiles > m.freeFiles-m.reservedFiles:
		return e
	}
	return nil
}

// missing adds what an image lacks, without the parts that were counted before.
func (p *pull) missing(ctx context.Context, counted map[digest.Digest]bool, to *need) error {
	to.beside = max(to.beside, p.want.Beside)
	store := p.client.ContentStore()
	snapshotter := p.client.SnapshotService(p.snapshotter)
	for n, layer := range p.layers {
		if !counted[layer.Digest] {
			counted[layer.Digest] = true
			if _, err := store.Info(ctx, layer.Digest); errdefs.IsNotFound(err) {
				to.blobs += layer.Size
				to.blobFiles += filesALayer
				if status, err := store.Status(ctx, remotes.MakeRefKey(ctx, layer)); err == nil {
					to.blobs -= min(status.Offset, layer.Size)
				}
			} else if err != nil {
				return err
			}
		}
		chain := p.chain(n)
		if counted[chain] {
			continue
		}
		counted[chain] = true
		if _, err := snapshotter.Stat(ctx, chain.String()); errdefs.IsNotFound(err) {
			size := unpackedSize(ctx, layer)
			to.snapshots += size
			to.snapshotFiles += filesALayer + size/bytesAFile
		} else if err != nil {
			return err
		}
	}
	return nil
}

// unpackedSize is how many bytes a layer becomes: what the manifest tells, else an estimate by the compressed size.
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

// guard gives up what comes once it takes more than was estimated: the reserve is for others. Some of it may be used,
// since nothing fits to the byte. It ends with ctx.
func (i *Images) guard(ctx context.Context, media []medium, pulls []*pull) error {
	// A containerd that is not told how much it may write has to be stopped in time: the reserve is the margin.
	keep := int64(1)
	if containerd.BoundedBySpace(i.client.DiffService()) {
		keep = halfReserve
	}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		}
		if err := i.checkSpaces(media, pulls, keep); err != nil {
			return err
		}
		wait.Reset(i.nextLook(media))
	}
}

// nextLook is after what the fastest medium needs to use up what is free.
func (i *Images) nextLook(media []medium) time.Duration {
	next := spaceLook
	for _, m := range media {
		if m.look(i.reserve) == nil {
			next = min(next, time.Duration(float64(m.free-m.reserved)/fastestMedium*float64(time.Second)))
		}
	}
	return max(next, shortestLook)
}

// checkSpaces fails where less is left than one part of so many of the reserve.
func (i *Images) checkSpaces(media []medium, pulls []*pull, part int64) error {
	for _, m := range media {
		if e := m.outgrown(i.reserve, part); e != nil {
			e.Images = refsOf(pulls)
			return &Error{Kind: NoSpace, Object: append(e.Images, "space")[0], Err: e}
		}
	}
	return nil
}

// outgrown is the error where less is left than one part of so many of the reserve, of a file system as it was looked at
// before.
func (m *medium) outgrown(reserve, part int64) *NoSpaceError {
	now := *m
	if now.look(reserve) != nil {
		return nil // writing tells
	}
	if m.free < m.reserved || m.freeFiles < m.reservedFiles { // others had used some of it before
		part = max(part, halfReserve)
	}
	// It is worth another attempt when there is more than there was before this one.
	e := &NoSpaceError{Dir: m.dir, Free: now.free, Reserved: now.reserved, reserve: reserve, grown: true}
	switch {
	case now.free < now.reserved/part:
		e.Needed = max(m.free-m.reserved, 0) + 1
	case now.freeFiles < now.reservedFiles/part:
		e.NeededFiles, e.FreeFiles, e.ReservedFiles = max(m.freeFiles-m.reservedFiles, 0)+1, now.freeFiles, now.reservedFiles
	default:
		return nil
	}
	return e
}

// outgrown turns the error of a full disk, if it is one, into one that says so.
func (i *Images) outgrown(err error, media []medium, pulls []*pull) error {
	var known *Error
	if !IsFull(err) || errors.As(err, new(*NoSpaceError)) || !errors.As(err, &known) {
		return err
	}
	for _, m := range media {
		if e := m.outgrown(i.reserve, halfReserve); e != nil {
			e.Images = refsOf(pulls)
			return &Error{Kind: NoSpace, Object: known.Object, Err: fmt.Errorf("%w: %w", e, known.Err)}
		}
	}
	return err
}

// refusals are what did not fit, by what it was, until something else came: to look again costs a look at the file
// system then, and neither a request nor a write.
type refusals map[string]*Error

func refusalKey(pulls []*pull) string {
	var names []string
	for _, p := range pulls {
		names = append(names, fmt.Sprintln(p.name, p.want.Platform, p.want.Beside))
	}
	slices.Sort(names)
	return strings.Join(names, "")
}

// refused is the error for images that did not fit before, and do not now.
func (i *Images) refused(pulls []*pull) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	known := i.refusals[refusalKey(pulls)]
	var e *NoSpaceError
	if known == nil || !errors.As(known, &e) || !e.Persists() {
		return nil
	}
	now := *e
	m := medium{dir: e.Dir}
	if m.look(e.reserve) == nil {
		now.Free, now.Reserved, now.FreeFiles = m.free, min(m.reserved, m.free), m.freeFiles
	}
	return &Error{Kind: NoSpace, Object: known.Object, Err: &now}
}

// remember keeps what came of bringing images.
func (i *Images) remember(pulls []*pull, err error) {
	var known *Error
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case err == nil:
		i.refusals = nil // they may share layers with others
	case errors.As(err, &known) && errors.As(err, new(*NoSpaceError)):
		if i.refusals == nil || len(i.refusals) >= maxRefusals {
			i.refusals = make(refusals)
		}
		i.refusals[refusalKey(pulls)] = known
	}
}

const maxRefusals = 64
