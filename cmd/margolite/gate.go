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

// whereLinksLead adds to the paths that may be mounted, or may not, where they lead on
// this device: what is asked for has its links resolved, and /bin is a link on
// many devices, /run on some. Links of what the site has opened are not followed:
// a workload that may write there could make them. Only entries that close
// something are, and those of the system that every device has.
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
		if all[real] != policy.MountNever { // of several that lead there, the one that closes it
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

// noGroup is the mend where the group of the socket does not exist.
func noGroup(group string) string {
	return "create it with `groupadd --system " + group + "`, or set control.group to an existing one"
}

// group looks at who may use the control socket, where it matters.
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
