// Package neighbours shows that no party can take down, stall or starve the others
// on a device: neither a workload, a registry, a slow installation, a hung shim, a
// caller of the control socket, nor the WFM.
//
// It is a matrix. A row is a [Hog], which takes more than its share. A column is a
// [Duty], something that must go on meanwhile, with the longest time that an
// operator would accept for it. Each row has a [Site] of its own: a plant (package
// plant) whose device runs a few small deployments, the neighbours, with the agent
// as a process in a memory control group and its run directory on a small tmpfs.
//
// For each row the neighbours are installed, the hog begins, and once it has an
// effect all duties are carried out beside it and timed. Then the agent is killed
// and started with the hog still there. After that the hog goes, and nothing may be
// left of it: neighbours run as they should, and after their removal the machine is
// as it was (package leftovers).
//
// `make test` runs four rows in a short form and `make test-all` each of them. `make
// neighbours` runs the long one, on the embedded containerd and on Debian's, and prints the matrix with the
// times that were measured. `make chaos KIND=hogs` (package faults) mixes hogs at
// random into kills and changes.
package neighbours
