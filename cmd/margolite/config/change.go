package config

import "reflect"

// A Change is what differs between two configurations. Both lists are in the
// order of the file.
type Change struct {
	// Parts are the sections that differ, such as "poll".
	Parts []string
	// Restart are the keys among what differs that a running daemon cannot take
	// over, such as "state.dir": what rests on them was opened when it started.
	// What differs otherwise can be taken over as it runs.
	Restart []string
}

// Changed compares c with the configuration that was in force before it. The
// content of the files that they name is not looked at.
func (c *Config) Changed(old *Config) Change {
	return Change{
		Parts: differing([]pair{
			{"device", c.Device, old.Device},
			{"wfm", c.WFM, old.WFM},
			{"poll", c.Poll, old.Poll},
			{"provision", c.Provision, old.Provision},
			{"state", c.State, old.State},
			{"control", c.Control, old.Control},
			{"runtime", c.Runtime, old.Runtime},
			{"policy", c.Policy, old.Policy},
			{"reports", c.Reports, old.Reports},
			{"registries", c.Registries, old.Registries},
			{"metrics", c.Metrics, old.Metrics},
			{"collector", c.Collector, old.Collector},
			{"log", c.Log, old.Log},
		}),
		Restart: differing([]pair{
			{"state.dir", c.State.Dir, old.State.Dir},
			{"state.run", c.State.Run, old.State.Run},
			{"state.reserve", c.State.Reserve, old.State.Reserve},
			{"runtime.containerd", c.Runtime.Containerd, old.Runtime.Containerd},
			{"runtime.namespace", c.Runtime.Namespace, old.Runtime.Namespace},
			{"runtime.publish", c.Runtime.Publish, old.Runtime.Publish},
			{"runtime.preload", c.Runtime.Preload, old.Runtime.Preload},
			{"runtime.pulls", c.Runtime.Pulls, old.Runtime.Pulls},
			{"runtime.minPullRate", c.Runtime.MinPullRate, old.Runtime.MinPullRate},
			{"runtime.logs", c.Runtime.Logs, old.Runtime.Logs},
			{"policy.keys", c.Policy.Keys, old.Policy.Keys},
			{"registries", c.Registries, old.Registries},
			{"metrics", c.Metrics, old.Metrics},
			{"collector", c.Collector, old.Collector},
			{"log.format", c.Log.Format, old.Log.Format},
		}),
	}
}

// pair is a part of two configurations.
type pair struct {
	key       string
	now, then any
}

func differing(pairs []pair) []string {
	var keys []string
	for _, p := range pairs {
		if !reflect.DeepEqual(p.now, p.then) {
			keys = append(keys, p.key)
		}
	}
	return keys
}
