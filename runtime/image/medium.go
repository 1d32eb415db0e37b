package image

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/plugins"
	"golang.org/x/sys/unix"
)

// Sync puts everything that was written to the file system of dir on its medium. containerd syncs what it knows about
// layers, but not their files.
func Sync(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot sync file system of %s: %w", dir, err)
	}
	if err := errors.Join(unix.Syncfs(fd), unix.Close(fd)); err != nil {
		return fmt.Errorf("cannot sync file system of %s: %w", dir, err)
	}
	return nil
}

// medium is a file system that containerd keeps images on.
type medium struct {
	dir       string
	blobs     bool // the content store is on it
	snapshots bool // the snapshots are on it
	records   bool // the agent's own records are on it

	device uint64

	// By look.
	free, reserved           int64 // bytes
	files                    int64 // that there can be; 0: any number
	freeFiles, reservedFiles int64
}

// media are the file systems of containerd, as far as it names directories that are visible here. A containerd in a
// mount namespace of its own may name none.
func (i *Images) media(ctx context.Context) ([]medium, error) {
	snapshotter, err := i.Snapshotter(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := i.client.IntrospectionService().Plugins(ctx,
		"type=="+string(plugins.ContentPlugin), "type=="+string(plugins.SnapshotPlugin)+",id=="+snapshotter)
	if err != nil {
		return nil, fmt.Errorf("cannot ask containerd for its directories: %w", err)
	}
	var media []medium
	at := make(map[uint64]int) // device -> index
	for _, plugin := range answer.Plugins {
		var stat unix.Stat_t
		dir := plugin.Exports["root"]
		if dir == "" || unix.Stat(dir, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		n, known := at[uint64(stat.Dev)]
		if !known {
			n = len(media)
			at[uint64(stat.Dev)] = n
			media = append(media, medium{dir: dir, device: uint64(stat.Dev)})
		}
		media[n].blobs = media[n].blobs || plugin.Type == string(plugins.ContentPlugin)
		media[n].snapshots = media[n].snapshots || plugin.Type == string(plugins.SnapshotPlugin)
	}
	return media, nil
}

// sync puts what was downloaded and unpacked on the medium.
func (i *Images) sync(ctx context.Context) error {
	media, err := i.media(ctx)
	if err != nil {
		return err
	}
	for _, m := range media {
		if err := Sync(m.dir); err != nil {
			return err
		}
	}
	return nil
}

// readBoot returns the identity of this run of the kernel.
func readBoot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(id) < 8 {
		return "unknown" // as each time: nothing is thought to be of a former boot
	}
	return string(id[:8])
}
