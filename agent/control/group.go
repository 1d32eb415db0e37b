package control

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// Share gives the control socket at path to a group: only root and its members may then use it. An
// empty name is the group that the agent runs as. The error is a user.UnknownGroupError if the
// group does not exist.
func Share(path, group string) error {
	gid := os.Getegid()
	if group != "" {
		g, err := user.LookupGroup(group)
		if err == nil {
			gid, err = strconv.Atoi(g.Gid)
		}
		if err != nil {
			return fmt.Errorf("cannot give control socket %s to group %s: %w", path, group, err)
		}
	}
	if err := os.Chown(path, -1, gid); err != nil {
		return fmt.Errorf("cannot give control socket %s to group %d: %w", path, gid, err)
	}
	return nil
}
