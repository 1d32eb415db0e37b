package git

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/margolite/margolite/agent/wfm"
)

// history is how many commits are fetched. Changing it changes versions, see order.
const history = 32

const tipRef = "refs/margolite/tip"

// maxPacks is how many packs the copy may have before they are combined.
const maxPacks = 16

// The work folder holds the copy of the branch, and an empty folder.
const (
	copyName = "repository"
	homeName = "home"
)

func (s *Source) copyDir() string { return filepath.Join(s.options.Dir, copyName) }

// prepare creates the work folder, private to this user.
func (s *Source) prepare() error {
	op := "use the work folder " + s.options.Dir
	for _, dir := range []string{s.options.Dir, s.git.home} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return &Error{Local, op, err}
		}
	}
	info, err := os.Stat(s.options.Dir)
	if err == nil && info.Mode().Perm() != 0o700 {
		err = os.Chmod(s.options.Dir, 0o700)
	}
	if err != nil {
		return &Error{Local, op, err}
	}
	return nil
}

func (s *Source) tip(ctx context.Context, a access) (string, error) {
	op := fmt.Sprintf("look up branch %s of %s", s.options.Branch, s.url)
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.Timeout, errSlow)
	defer cancel()
	c := command{args: []string{"ls-remote", "--quiet", s.url, s.ref()}, access: a}
	answer, err := s.git.ask(ctx, c, "")
	if err != nil {
		return "", explain(op, err, Unreachable)
	}
	for line := range strings.Lines(answer) {
		// Refs that merely end in the same name are listed as well.
		if id, name, _ := strings.Cut(strings.TrimSpace(line), "\t"); name == s.ref() && isObjectID(id) {
			return id, nil
		}
	}
	return "", &Error{NoBranch, op, errors.New("the repository has no such branch")}
}

func (s *Source) ref() string { return "refs/heads/" + s.options.Branch }

// held returns the commit that the copy holds; empty if there is none or it is unreadable.
func (s *Source) held(ctx context.Context) string {
	if _, err := os.Stat(s.copyDir()); err != nil {
		return ""
	}
	return s.object(ctx, tipRef+"^{commit}")
}

// object returns the id of an object in the copy; empty if it is unreadable.
func (s *Source) object(ctx context.Context, name string) string {
	answer, err := s.git.ask(ctx, s.local("rev-parse", "--verify", "--quiet", name), "")
	if id := strings.TrimSpace(answer); err == nil && isObjectID(id) {
		return id
	}
	return ""
}

func (s *Source) local(args ...string) command { return command{args: args, dir: s.copyDir()} }

// using calls use with a commit in the copy: the given one or, if that is not held, the branch's
// after a fetch. A damaged copy is recreated once. It returns the commit that was used last.
func (s *Source) using(ctx context.Context, commit string, held bool, a access, use func(commit string) error) (string, error) {
	for again := false; ; again, held = true, false {
		var err error
		if !held {
			var now string
			if now, err = s.fetch(ctx, commit, a); err == nil {
				commit = now
			}
		}
		if err == nil {
			err = use(commit)
		}
		var failed *Error
		local := ctx.Err() == nil && errors.As(err, &failed) && failed.Reason == Local
		if again || !local && !damaged(ctx, err) {
			return commit, err
		}
		if err := s.abandon(err); err != nil {
			return commit, err
		}
	}
}

// fetch updates the copy to the branch and returns the commit. id is the last answer of the server,
// whose length gives the repository's hash.
func (s *Source) fetch(ctx context.Context, id string, a access) (string, error) {
	op := fmt.Sprintf("fetch branch %s of %s", s.options.Branch, s.url)
	if err := s.sweep(); err != nil {
		return "", err
	}
	// There is no copy yet, or repacking did not make it small enough.
	if packs, size, err := s.packs(); err != nil || packs > 2*maxPacks || size > s.options.Limits.Bundle {
		if err := s.create(ctx, len(id) == 64); err != nil {
			return "", err
		}
	}
	fetch := command{
		args: []string{
			"fetch", "--quiet", "--force", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--no-show-forced-updates",
			"--no-recurse-submodules", "--depth=" + strconv.Itoa(history), "--stdin", s.url,
		},
		dir: s.copyDir(), access: a, fileBytes: s.options.Limits.Bundle,
	}
	if _, err := s.git.ask(ctx, fetch, "+"+s.ref()+":"+tipRef+"\n"); err != nil {
		if most, tooLarge := s.options.Limits.Bundle, s.wasCutOff(); tooLarge && ctx.Err() == nil {
			err = fmt.Errorf("cannot %s: %w: its last commits have more than %d bytes", op, wfm.ErrTooLarge, most)
		} else {
			// Anything that cannot be told from damage counts as damage.
			err = explain(op, err, Local)
		}
		return "", errors.Join(err, s.sweep())
	}
	commit := s.held(ctx)
	if commit == "" {
		return "", &Error{Local, op, cmp.Or(ctx.Err(), errBroken)}
	}
	return commit, s.tidy(ctx)
}

// create creates an empty copy without a template's hooks and examples.
func (s *Source) create(ctx context.Context, sha256 bool) error {
	args := []string{"init", "--quiet", "--bare", "--template="}
	if sha256 {
		args = append(args, "--object-format=sha256")
	}
	if err := s.discard(); err != nil {
		return err
	}
	c := command{args: append(args, s.copyDir()), fileBytes: maxOutput}
	if _, err := s.git.ask(ctx, c, ""); err != nil {
		return &Error{Local, "create a repository in " + s.options.Dir, err}
	}
	return nil
}

func (s *Source) discard() error {
	if err := os.RemoveAll(s.copyDir()); err != nil {
		return &Error{Local, "remove the damaged copy of the repository", err}
	}
	return nil
}

// abandon removes a copy that cannot be used; the next fetch recreates it.
func (s *Source) abandon(why error) error {
	s.options.Logger.Warn("the local copy of the repository is recreated", "error", why)
	return s.discard()
}

// sweep removes what an interrupted git leaves: incomplete packs, and locks, which are all stale
// since only this process writes here.
func (s *Source) sweep() error {
	err := filepath.WalkDir(s.copyDir(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case strings.HasSuffix(d.Name(), ".lock") || strings.HasPrefix(d.Name(), "tmp_") || strings.HasPrefix(d.Name(), "."):
			return os.Remove(path)
		}
		return nil
	})
	if err != nil {
		return &Error{Local, "tidy up the copy of the repository", err}
	}
	return nil
}

// wasCutOff reports that git wrote too much: nothing else leaves an incomplete pack that large.
func (s *Source) wasCutOff() bool {
	halves, _ := os.ReadDir(filepath.Join(s.copyDir(), "objects", "pack")) // none if unreadable
	return slices.ContainsFunc(halves, func(file fs.DirEntry) bool {
		info, err := file.Info()
		return err == nil && strings.HasPrefix(file.Name(), "tmp_") && info.Size() >= s.options.Limits.Bundle
	})
}

// tidy combines the packs of the copy into one that holds only what the branch needs. If the copy
// stays too large, the next change fetches everything again.
func (s *Source) tidy(ctx context.Context) error {
	packs, size, err := s.packs()
	if err == nil && packs <= maxPacks && size <= s.options.Limits.Bundle {
		return nil
	}
	repack := command{
		args: []string{"repack", "-a", "-d", "-n", "-q", "--no-write-bitmap-index"}, dir: s.copyDir(),
		fileBytes: s.options.Limits.Bundle,
	}
	if _, err := s.git.ask(ctx, repack, ""); err != nil && ctx.Err() == nil {
		s.options.Logger.Warn("cannot make the local copy of the repository smaller", "error", err)
	}
	return ctx.Err()
}

func (s *Source) packs() (packs int, size int64, err error) {
	err = filepath.WalkDir(filepath.Join(s.copyDir(), "objects"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".pack") {
			packs++
		}
		size += info.Size()
		return nil
	})
	return packs, size, err
}

func (s *Source) version(ctx context.Context, commit string) (version uint64, made uint64, err error) {
	list := s.local("rev-list", "--timestamp", "--first-parent", "--max-count="+strconv.Itoa(history), commit, "--")
	answer, err := s.git.ask(ctx, list, "")
	if err != nil {
		return 0, 0, err
	}
	times, err := parseTimes(answer)
	if err != nil {
		return 0, 0, err
	}
	return max(order(times), 1), times[0], nil
}

// list is the command that lists everything in a folder of a commit; "": in all of it.
func (s *Source) list(commit, folder string) command {
	c := s.local("ls-tree", "-r", "-z", "--long", "--full-tree", commit)
	if folder != "" {
		c.args = append(c.args, "--", folder+"/")
	}
	return c
}

func (s *Source) files(ctx context.Context, commit string) (all []entry, err error) {
	limits := s.options.Limits
	for _, folder := range s.folders {
		var files []entry
		var found bool
		err = s.git.run(ctx, s.list(commit, folder), func(_ io.WriteCloser, out *bufio.Reader) error {
			var err error
			files, found, err = readTree(out, folder, limits)
			return err
		})
		if err == nil && !found {
			err = s.checkGone(ctx, commit, folder)
		}
		if err != nil {
			return nil, err
		}
		for _, e := range files {
			limits.Expanded -= e.size
		}
		all = append(all, files...)
	}
	return all, nil
}

// checkGone refuses an empty folder unless it was emptied on purpose; see the package
// documentation.
func (s *Source) checkGone(ctx context.Context, commit, folder string) error {
	rest, err := s.git.ask(ctx, s.local("ls-tree", "--name-only", commit), "")
	switch {
	case err != nil:
		return err
	case rest == "":
		return &Error{NoFolder, "read " + s.url, refused("repository", "no longer has any files")}
	}
	change, err := s.git.ask(ctx, s.local("rev-list", "--max-count=1", commit, "--", folder), "")
	var file string
	if err == nil {
		file, err = s.git.ask(ctx, s.local("ls-tree", "--name-only", commit, "--", folder), "")
	}
	if err == nil && (change == "" || file != "") {
		op := "read folder " + folder + " of " + s.url
		err = &Error{NoFolder, op, refused(folder, "is not a folder of the repository, nor was it one in the last %d commits", history)}
	}
	return err
}

func (s *Source) objects(ctx context.Context, ids []string, each func(i int, body []byte) error) error {
	if len(ids) == 0 {
		return nil
	}
	return s.git.run(ctx, s.local("cat-file", "--batch"), func(in io.WriteCloser, out *bufio.Reader) error {
		for i, id := range ids {
			if _, err := io.WriteString(in, id+"\n"); err != nil {
				return fmt.Errorf("cannot write to git: %w", err)
			}
			body, err := readObject(out, id, s.options.Limits.Document)
			if err != nil {
				return err
			}
			if err := each(i, body); err != nil {
				return err
			}
		}
		return nil
	})
}

// damaged reports that the copy itself cannot be read: git fails or answers something else.
func damaged(ctx context.Context, err error) bool {
	var known *Error
	var exit *exitError
	return ctx.Err() == nil && !errors.As(err, &known) && !isRefusal(err) &&
		(errors.As(err, &exit) || errors.Is(err, errBroken) || errors.Is(err, errShort))
}
