// Package container runs one container: it turns a Compose service and an image
// into an OCI runtime specification, and the specification into a container
// record, a snapshot and a task of containerd.
//
// # What it owns
//
//	in containerd            the record, the snapshot (its key is the container's id) and the task
//	StateDir/volumes/P/V     the content of volume V of project P
//	RunDir/logs/ID.log       output, written by the shim
//	RunDir/mounts/ID         where a root file system is mounted while an image is read
//	RunDir/runc              what runc knows of containers
//	/NAMESPACE/P/ID          the control group
//
// # Invariants
//
// Everything that is to be known about a container is in its [Labels]. A
// container is never changed after its creation, save three labels: that a
// one-shot service is done, that it is being stopped, what it depends on. Its id follows from its configuration, so creating
// it twice is the same as creating it once.
//
// # Failure model
//
// Create, Start, Stop and Delete may be repeated after a kill at any
// instruction. The record is written last and deleted last: a snapshot without
// record is a leftover that containerd's gc collects when its lease ends, and
// that a repeated Create replaces. A record without snapshot gets a new one
// when it is started. A task that was created and not started is deleted and
// created anew, and so is one whose shim is gone; processes that nobody knows of
// any more are found by their control group, and killed first.
//
// Images are hostile: /etc/passwd and /etc/group are read within bounds, and no
// path inside an image leads out of it.
package container
