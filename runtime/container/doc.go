// Package container runs one container: it turns a Compose service and an image
// into an OCI runtime specification, and the specification into a container
// record, a snapshot and a task of containerd.
//
// # What it owns
//
//	in containerd               the record, the snapshot (its key is the container's id) and the task
//	StateDir/volumes/P/V        the content of volume V of project P; P is _ for those made by hand
//	StateDir/files/P/ID         configs and secrets of a container; root alone gets there
//	RunDir/files/ID             where they are mounted from: a link to them
//	RunDir/volumes/P/V~HASH     where a volume with a file system type is mounted; HASH is of its definition
//	RunDir/shm/ID               /dev/shm of a container that shares it
//	RunDir/stdin/ID             standard input of a container that keeps it open
//	RunDir/exec/ID.EXEC         streams of a command that runs in a container
//	RunDir/logs/ID-json.log     output; elsewhere if Options say so
//	RunDir/nerdctl              what nerdctl reads with this as its --data-root
//	RunDir/mounts/ID            where a root file system is mounted while an image is read
//	RunDir/mounts/ID.N          where a part of a volume is bound while a container starts
//	RunDir/mounts/ID.sN         where a path of the device is bound while a container starts
//	RunDir/runc                 what runc knows of containers
//	/NAMESPACE/P/ID             the control group
//
// # Invariants
//
// Everything that is to be known about a container is in its [Labels], the
// content of configs and secrets apart. A container is never changed after its
// creation, save three labels: that a one-shot service is done, that it is being
// stopped, what it depends on; and in its specification what only a start can
// tell: devices and the namespaces of others. Its id follows from its
// configuration, so creating it twice is the same as creating it once.
//
// Anonymous volumes belong to a replica and a place, so that a new container of
// the replica has the content of the old one. Volumes are deleted by
// [Containers.RemoveVolume] alone. One with a type is mounted while a container
// names it; two definitions of one name are mounted side by side.
//
// # Failure model
//
// Create, Start, Stop and Delete may be repeated after a kill at any
// instruction. The record is written last, and deleted before what lies outside
// containerd: what has no record is removed by the next process before it makes
// anything of its own. A snapshot without record is a leftover that containerd's
// gc collects when its lease ends, and that a repeated Create replaces. A record
// without snapshot gets a new one when it is started. A task that was created
// and not started is deleted and created anew, and so is one whose shim is gone;
// processes that nobody knows of any more are found by their control group, and
// killed first. Commands of a process that was killed are ended by the next.
//
// Devices of the machine are looked for at each start, as are CDI files: a
// container that has some keeps the specification without them, and a start
// writes the completed one only when it differs.
//
// A shim may stop responding. Each call to one has a deadline, and ends with the
// shim's grace time; reading the containers hardly waits at all: those of a silent
// shim are Unresponsive. A shim that does not respond again is found as the parent of
// its containers' processes, and killed with all of them; containerd then reports that
// they have ended. A container can make runc wait for ever, by a FIFO in place of a
// file that runc reads: that runc alone is killed then, and the start fails.
//
// A limit that the kernel cannot set is left out with a warning where Docker
// does so, and else refused when the container is created.
//
// Containers may write where others mount from. What a container mounts of the
// device is what the path led to when the project was loaded and judged, and at
// each start that has to be a path without links: one that somebody made in the
// way since then fails the start, and a path that leads elsewhere by another link
// is not followed there. A container made anew goes by what was judged for it.
//
// Images are hostile: /etc/passwd and /etc/group are read within bounds, and no
// path inside an image, or a volume, leads out of it, whoever changes links
// meanwhile.
package container
