package debimage

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"
)

// unread are directories that no service looks into.
var unread = []string{
	"usr/share/bash-completion", "usr/share/doc", "usr/share/doc-base", "usr/share/gdb", "usr/share/info",
	"usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/lib/systemd", "lib/systemd", "etc/init.d",
}

// unpack writes the files of packages into one archive.
func unpack(ctx context.Context, w io.Writer, files []string) error {
	tw := tar.NewWriter(w)
	directories := map[string]bool{"": true}
	for _, file := range files {
		if err := add(ctx, tw, file, directories); err != nil {
			return fmt.Errorf("cannot unpack %s: %w", path.Base(file), err)
		}
	}
	return tw.Close()
}

// add adds the files of a package; a directory just once.
func add(ctx context.Context, tw *tar.Writer, file string, directories map[string]bool) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = copyFiles(tw, tar.NewReader(out), directories)
	if err == nil {
		_, err = io.Copy(io.Discard, out) // what fills the last block
	}
	return errors.Join(err, out.Close(), cmd.Wait())
}

func copyFiles(tw *tar.Writer, from *tar.Reader, directories map[string]bool) error {
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.Trim(strings.TrimPrefix(h.Name, "."), "/")
		if slices.ContainsFunc(unread, func(dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }) {
			continue
		}
		if h.Typeflag == tar.TypeDir {
			if directories[name] {
				continue
			}
			directories[name] = true
			name += "/"
		}
		h.Name, h.Linkname = name, linkTarget(h)
		h.ModTime, h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}, time.Time{}
		h.Uname, h.Gname, h.Format = "", "", tar.FormatPAX
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, from); err != nil {
			return err
		}
	}
}

// linkTarget is where a link leads: a hard link names another member.
func linkTarget(h *tar.Header) string {
	if h.Typeflag == tar.TypeLink {
		return strings.TrimPrefix(h.Linkname, "./")
	}
	return h.Linkname
}
