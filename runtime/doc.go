// Package runtime runs Compose projects on containerd.
//
// It owns everything on the device that belongs to a project: container
// records, snapshots and tasks in containerd, volumes and extracted archives
// in the state directory, network namespaces, hosts files and logs in the run
// directory, and one nftables table. It knows Compose, not who asks for it.
//
// # Invariants
//
// What runs is read, never remembered. Each container carries labels that say
// which project, service and configuration it is, which address and ports it
// has and when it is to be restarted. The difference between these labels and
// the wanted project is a Plan; Apply and Remove execute one step of it, look
// again and plan again until the plan is empty.
//
// The image, the address and the configuration of a container never change:
// another configuration is another container, with another id. A container
// lives in the sandbox of its service (a network namespace that is pinned
// outside any container), so names, addresses and ports outlast it.
//
// # Failure model
//
// The process may be killed between any two instructions: each step is safe to
// repeat, and the next Apply or Remove of the same project converges. Shims,
// and with them whole projects, may die at any time: Run brings them back.
// After a reboot the run directory is empty and there are no tasks; Run builds
// networks, sandboxes and ports anew from the labels and starts the containers
// in the order of their dependencies, without a network and without the
// project that they came from. Containers without our labels are never touched.
package runtime
