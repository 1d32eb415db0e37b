package image

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/containerd/containerd/v2/plugins"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/tree"
)

// amounts are bytes and files, of a file system or needed by images.
type amounts [2]int64

const (
	inBytes = iota
	inFiles // of which some file systems have a fixed number
)

const (
	// DefaultReserve is what images leave free, at most a part of a small file system.
	DefaultReserve = 32 << 20
	reservePart    = 20 // one of 20
	reservedFiles  = 256

	// ext4 keeps one block in ext4Part for itself, up to a maximum.
	ext4Part = 50
	ext4Most = 4096
)

// medium is a file system for images, or for the agent's own records.
type medium struct {
	dir       string
	device    uint64
	blobs     bool // the content store is on it
	snapshots bool // the snapshots are on it
	records   bool // the agent's own records are on it

	reserve        int64   // bytes, as configured; 0: the usual ones
	free, reserved amounts // by look
}

// look reads the free space. Space kept for root counts: we and root in containers may use it.
func (m *medium) look() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir, &fs); err != nil {
		return fmt.Errorf("cannot determine the free space in %s: %w", m.dir, err)
	}
	block, free := int64(fs.Bsize), int64(fs.Bfree)
	if fs.Type == unix.EXT4_SUPER_MAGIC { // which counts what it keeps for itself as free
		free = max(free-min(int64(fs.Blocks)/ext4Part, ext4Most), 0)
	}
	m.free = amounts{free * block, int64(fs.Ffree)}
	m.reserved = amounts{m.reserve, min(reservedFiles, int64(fs.Files)/reservePart)}
	if m.reserve == 0 {
		m.reserved[inBytes] = min(DefaultReserve, int64(fs.Blocks)*block/reservePart)
	}
	if fs.Files == 0 { // it does not count them
		m.free[inFiles] = math.MaxInt64
	}
	return nil
}

// spare is what images may take.
func (m *medium) spare(kind int) int64 { return max(m.free[kind]-m.reserved[kind], 0) }

// media are the file systems of containerd's directories, if visible here, and of the agent's records.
// A containerd in its own mount namespace may name none.
func (i *Images) media(ctx context.Context) ([]medium, error) {
	snapshotter, err := i.Snapshotter(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := i.o.Client.IntrospectionService().Plugins(ctx,
		"type=="+string(plugins.ContentPlugin), "type=="+string(plugins.SnapshotPlugin)+",id=="+snapshotter)
	if err != nil {
		return nil, fmt.Errorf("cannot ask containerd for its directories: %w", err)
	}
	var media []medium
	add := func(dir string, holds func(*medium)) {
		var stat unix.Stat_t
		if dir == "" || unix.Stat(dir, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			return
		}
		n := slices.IndexFunc(media, func(m medium) bool { return m.device == uint64(stat.Dev) })
		if n < 0 {
			n = len(media)
			media = append(media, medium{dir: dir, device: uint64(stat.Dev), reserve: i.o.Reserve})
		}
		holds(&media[n])
	}
	for _, plugin := range answer.Plugins {
		add(plugin.Exports["root"], func(m *medium) {
			m.blobs = m.blobs || plugin.Type == string(plugins.ContentPlugin)
			m.snapshots = m.snapshots || plugin.Type == string(plugins.SnapshotPlugin)
		})
	}
	add(i.o.State, func(m *medium) { m.records = true })
	for n := range media {
		if err := media[n].look(); err != nil {
			return nil, err
		}
	}
	return media, nil
}

// syncAll makes downloads and layers durable. containerd syncs their records, but not files.
func syncAll(media []medium) error {
	for _, m := range media {
		if m.blobs || m.snapshots {
			if err := tree.SyncAll(m.dir); err != nil {
				return err
			}
		}
	}
	return nil
}
