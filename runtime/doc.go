// Package runtime runs Compose projects on containerd.
//
// It owns everything on the device that belongs to a project: container
// records, snapshots and tasks in containerd, volumes and extracted archives
// in the state directory, network namespaces, hosts files and logs in the run
// directory, and the tables of nftables that are called margolite. It knows
// Compose, not who asks for it.
//
// # Invariants
//
// What runs is read, never remembered. Each container carries labels that say
// which project, service and configuration it is, and details: which addresses
// and ports it has, when it is to be restarted, how it is probed. The difference
// between these and the wanted project is a Plan: groups of sequences of steps,
// those of one group side by side, as far as they can be done now. Apply and
// Remove execute it, look again and plan again until nothing is to be done, and
// wait where a condition of depends_on is not met: until a container ends or its
// health changes, both of which tell.
//
// What commands of post_start a process has had is in RunDir/started.
//
// What is in memory only is learned again by whoever starts anew: the health of
// containers, what waits for what, and how often a container failed in a row.
//
// The image, the addresses and the configuration of a container never change:
// another configuration is another container, with another id. A container
// lives in the sandbox of its replica (a network namespace that is pinned
// outside any container), or in that of another one, so names, addresses and
// ports outlast it. A network belongs to whoever names it: projects that give
// the same name share it, and it goes with the last container that was made for
// it.
//
// # Failure model
//
// The process may be killed between any two instructions: each step is safe to
// repeat, and the next Apply or Remove of the same project converges. Shims,
// and with them whole projects, may die at any time: Run brings them back, the
// first time at once, and ever more rarely what keeps failing.
// After a reboot the run directory is empty and there are no tasks; Run builds
// networks, sandboxes and ports anew from the labels and starts the containers
// when what they depend on allows it, without a network and without the project
// that they came from. Containers without our labels are never touched.
package runtime
