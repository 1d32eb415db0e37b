package debimage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// unread are directories that no service looks into.
var unread = []string{
	"usr/share/bash-completion", "usr/share/doc", "usr/share/doc-base", "usr/share/gdb", "usr/share/info",
	"usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/lib/systemd", "lib/systemd", "etc/init.d",
}

// unpack writes the files of packages into one archive, the same for the same packages.
func unpack(ctx context.Context, archive string, files []string) error {
	root, err := os.MkdirTemp("", "margolite-debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	for _, file := range files {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", file, root).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot unpack %s: %w: %s", filepath.Base(file), err, out)
		}
	}
	for _, dir := range unread {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	tar := exec.CommandContext(ctx, "tar", "--create", "--file", archive, "--directory", root,
		"--sort=name", "--mtime=@0", "--numeric-owner", ".")
	if out, err := tar.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot pack a layer: %w: %s", err, out)
	}
	return nil
}
