package container

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits on /etc/passwd and /etc/group, which come from an image.
const (
	maxAccounts = 1 << 20  // bytes of one file
	maxLine     = 64 << 10 // bytes of one line
	maxGroups   = 1 << 16  // supplementary groups that Linux allows
)

// User is who the process of a container runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary, sorted
}

// LookupUser resolves the user of a container, in the form that Compose and
// images use: user[:group], each a name or a number, "" for root. Names and
// groups are those of the image whose root file system is at root.
func LookupUser(root, spec string) (User, error) {
	passwd, err := readAccounts(root, "/etc/passwd")
	if err != nil {
		return User{}, err
	}
	group, err := readAccounts(root, "/etc/group")
	if err != nil {
		return User{}, err
	}
	u, err := resolveUser(spec, passwd, group)
	if err != nil {
		return User{}, fmt.Errorf("cannot resolve user %.80q: %w", spec, err)
	}
	return u, nil
}

// In adds further groups to a user, names of the image or numbers.
func (u User) In(root string, groups []string) (User, error) {
	if len(groups) == 0 {
		return u, nil
	}
	text, err := readAccounts(root, "/etc/group")
	if err != nil {
		return User{}, err
	}
	u.Groups = slices.Clone(u.Groups)
	for _, name := range groups {
		gid, numeric := accountID(name)
		found := findAccount(text, 3, func(f []string) bool {
			_, ok := accountID(f[2])
			return ok && f[0] == name
		})
		switch {
		case found != nil:
			gid, _ = accountID(found[2])
		case !numeric:
			return User{}, fmt.Errorf("cannot resolve group_add: the image has no group %.80q", name)
		}
		u.Groups = append(u.Groups, gid)
	}
	u.Groups = eachOnce(u.Groups)
	if len(u.Groups) > maxGroups {
		return User{}, fmt.Errorf("cannot resolve group_add: there are more than %d groups", maxGroups)
	}
	return u, nil
}

// resolveUser looks spec up in the texts of /etc/passwd and /etc/group.
func resolveUser(spec, passwd, group string) (User, error) {
	name, groupName, hasGroup := strings.Cut(spec, ":")
	if hasGroup && groupName == "" {
		return User{}, errors.New("the group after the colon is missing")
	}
	if name == "" {
		name = "0"
	}

	var u User
	uid, numeric := accountID(name)
	account := findAccount(passwd, 4, func(f []string) bool {
		id, ok := accountID(f[2])
		return ok && (f[0] == name || numeric && id == uid)
	})
	switch {
	case account != nil:
		u.UID, _ = accountID(account[2])
		if gid, ok := accountID(account[3]); ok {
			u.GID = gid
		}
		name = account[0]
	case numeric:
		u.UID = uid
	default:
		return User{}, errors.New("the image has no such user")
	}

	if hasGroup {
		gid, numeric := accountID(groupName)
		found := findAccount(group, 3, func(f []string) bool {
			_, ok := accountID(f[2])
			return ok && f[0] == groupName
		})
		switch {
		case found != nil:
			u.GID, _ = accountID(found[2])
		case numeric:
			u.GID = gid
		default:
			return User{}, fmt.Errorf("the image has no group %.80q", groupName)
		}
		return u, nil // a group that was asked for comes alone
	}

	findAccount(group, 4, func(f []string) bool {
		gid, ok := accountID(f[2])
		if ok && len(u.Groups) < maxGroups && slices.Contains(strings.Split(f[3], ","), name) {
			u.Groups = append(u.Groups, gid)
		}
		return false
	})
	u.Groups = eachOnce(u.Groups)
	return u, nil
}

// eachOnce sorts groups. It is not slices.Sort, which the compiler would write
// out anew for their type.
func eachOnce(groups []uint32) []uint32 {
	sort.Slice(groups, func(i, j int) bool { return groups[i] < groups[j] })
	return slices.Compact(groups)
}

// findAccount returns the fields of the first line that has at least n of them and that match likes.
func findAccount(text string, n int, match func(fields []string) bool) []string {
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if fields := strings.Split(line, ":"); len(fields) >= n && match(fields) {
			return fields
		}
	}
	return nil
}

// accountID reads a user or group number; Linux reserves the largest for "no change".
func accountID(s string) (uint32, bool) {
	id, err := strconv.ParseUint(s, 10, 32)
	return uint32(id), err == nil && id < 1<<32-1
}

// readAccounts reads a text file of an image; a file that is not there is empty.
func readAccounts(root, path string) (string, error) {
	// root may be that of a container that runs, and changes links meanwhile.
	place, err := openInRoot(root, path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot find %s in image: %w", path, err)
	}
	defer place.Close()
	if info, err := place.Stat(); err != nil || !info.Mode().IsRegular() { // it may be a FIFO, whose opening blocks
		return "", fmt.Errorf("cannot read %s of image: it is no regular file", path)
	}
	f, err := os.OpenFile(fdPath(place), os.O_RDONLY|unix.O_NONBLOCK, 0) // a container may hold a lease on it, which delays others
	if err != nil {
		return "", fmt.Errorf("cannot read %s of image: %w", path, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAccounts+1))
	if err != nil {
		return "", fmt.Errorf("cannot read %s of image: %w", path, err)
	}
	if len(text) > maxAccounts {
		return "", fmt.Errorf("cannot read %s of image: it is larger than %d bytes", path, maxAccounts)
	}
	return string(text), nil
}
