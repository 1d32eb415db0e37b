package main

import (
	"errors"
	"maps"
	"os/user"
	"slices"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime/container"
)

func gateOf(cfg *config.Config) *policy.Gate {
	o := cfg.Policy.Options
	o.Allow.Mounts = whereLinksLead(o.Allow.Mounts)
	return policy.New(o)
}

// whereLinksLead adds the targets of links to the mount rules: requested paths have their links
// resolved, and /bin is a link on many devices, /run on some. Links of paths that the site opened
// are not followed, since a workload that may write there could create them; only those of
// restricting entries and of the system directories that every device has.
func whereLinksLead(mounts map[string]policy.MountAccess) map[string]policy.MountAccess {
	system := policy.DefaultAllow().Mounts
	closing := []policy.MountAccess{policy.MountNever, policy.MountBelow}
	all := maps.Clone(mounts)
	for _, at := range slices.Sorted(maps.Keys(mounts)) {
		access := mounts[at]
		if !slices.Contains(closing, access) && system[at] != access {
			continue
		}
		real := container.Real(at)
		if _, said := mounts[real]; said || policy.CheckMount(real) != nil {
			continue
		}
		if all[real] != policy.MountNever { // if several lead there, the most restrictive wins
			all[real] = access
		}
	}
	return all
}

func share(socket, group string) error {
	err := control.Share(socket, group)
	if unknown := user.UnknownGroupError(""); errors.As(err, &unknown) {
		return command.Hint(err, noGroup(group))
	}
	return err
}

func noGroup(group string) string {
	return "create it with `groupadd --system " + group + "`, or set control.group to an existing one"
}

// group checks that the socket's group exists, and is set if changes need approval.
func (f *findings) group(cfg *config.Config) {
	const object = "control.group"
	group := cfg.Control.Group
	if group == "" {
		if cfg.Policy.AsksForApproval() {
			f.warning(object, "changes wait for approval, and only root can approve them", "set control.group to the group of those who approve")
		}
		return
	}
	if _, err := user.LookupGroup(group); err != nil {
		f.failure(object, err.Error(), noGroup(group))
		return
	}
	f.fine(object, "root and members of group "+group+" may use the control socket")
}
