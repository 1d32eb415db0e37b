// Package neighbours shows that no party can take down, stall or starve the others
// on a device: neither a workload, a registry, a slow installation, a hung shim, a
// caller of the control socket, nor the WFM.
//
// A hog takes more than its share. A duty must be done meanwhile. Each test has
// one hog and a site of its own: a plant (package plant) whose device runs a few
// small deployments, the neighbours, with the agent as a process in a memory control
// group and its run directory on a small tmpfs.
//
// The neighbours are installed, the hog begins, and once it has an effect all duties
// are carried out beside it. Then the agent is killed
// and started with the hog still there. After that the hog goes, and nothing may be
// left of it: neighbours run as they should, and after their removal the machine is
// as it was (package leftovers).
//
// `make test` runs four hogs and `make test-all` each of them: a duty that is held up
// fails, however long a busy machine takes for one that is not. `make neighbours` is for
// a quiet machine: hogs have their full size, run on the embedded containerd and on
// Debian's, and a duty fails that takes longer than an operator would accept.
package neighbours
