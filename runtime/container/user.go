package container

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/tree"
)

// Limits on /etc/passwd and /etc/group, which come from an image.
const (
	maxAccounts = 1 << 20 // bytes per file
	maxGroups   = 1 << 16 // supplementary groups that Linux allows
)

// LookupUser resolves user[:group], names or numbers, "" for root, and further groups, with the
// names of the image whose root file system is at root.
func LookupUser(root, spec string, groups ...string) (specs.User, error) {
	passwd, err := readAccounts(root, "/etc/passwd", 2)
	if err != nil {
		return specs.User{}, err
	}
	group, err := readAccounts(root, "/etc/group", 1)
	if err != nil {
		return specs.User{}, err
	}
	if strings.HasSuffix(spec, ":") {
		return specs.User{}, fmt.Errorf("cannot resolve user %.80q: the group after the colon is missing", spec)
	}
	found, err := user.GetExecUser(spec, nil, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		return specs.User{}, fmt.Errorf("cannot resolve user %.80q in the image: %w", spec, err)
	}
	further, err := user.GetAdditionalGroups(groups, bytes.NewReader(group))
	if err != nil {
		return specs.User{}, fmt.Errorf("cannot resolve group_add in the image: %w", err)
	}
	u := specs.User{UID: uint32(found.Uid), GID: uint32(found.Gid)}
	for _, gid := range append(found.Sgids, further...) {
		u.AdditionalGids = append(u.AdditionalGids, uint32(gid))
	}
	slices.Sort(u.AdditionalGids)
	if u.AdditionalGids = slices.Compact(u.AdditionalGids); len(u.AdditionalGids) > maxGroups {
		return specs.User{}, fmt.Errorf("cannot resolve groups: there are more than %d", maxGroups)
	}
	return u, nil
}

// wellFormed keeps the lines with valid numbers after name and password. The library takes
// invalid ones for 0, which is root, and comments for accounts.
func wellFormed(text []byte, numbers int) []byte {
	var kept bytes.Buffer
	for line := range bytes.Lines(text) {
		fields := bytes.SplitN(bytes.TrimSpace(line), []byte(":"), 3+numbers)
		invalid := func(id []byte) bool {
			_, err := strconv.ParseUint(string(id), 10, 31) // as the library does
			return err != nil
		}
		if len(line) >= bufio.MaxScanTokenSize || len(fields) < 2+numbers ||
			bytes.HasPrefix(fields[0], []byte("#")) || slices.ContainsFunc(fields[2:2+numbers], invalid) {
			continue
		}
		kept.Write(line)
	}
	return kept.Bytes()
}

// readAccounts reads lines with this many numbers; a missing file is empty.
func readAccounts(root, path string, numbers int) ([]byte, error) {
	// root may be that of a running container, which can change links meanwhile.
	place, err := openInRoot(root, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find %s in image: %w", path, err)
	}
	defer place.Close()
	if info, err := place.Stat(); err != nil || !info.Mode().IsRegular() { // do not even open a device
		return nil, fmt.Errorf("cannot read %s of image: not a regular file", path)
	}
	text, err := tree.ReadFile(fdPath(place), maxAccounts)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of image: %w", path, err)
	}
	return wellFormed(text, numbers), nil
}
