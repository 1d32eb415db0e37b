// Package container runs one container: it turns a Compose service and an image into an OCI
// runtime specification, and that into a record, a snapshot and a task of containerd.
//
// # What it owns
//
//	in containerd               the record, the snapshot (its key is the container's id) and the task
//	StateDir/volumes/P/V        the content of volume V of project P; P is _ if made by hand
//	StateDir/files/P/ID         configs and secrets of a container, for root only
//	RunDir/files/ID             where they are mounted from: a link
//	RunDir/volumes/P/V~HASH     the mount of a volume with a file system type; HASH is of its definition
//	RunDir/shm/ID               /dev/shm of a container that shares it
//	RunDir/stdin/ID             standard input of a container that keeps it open
//	RunDir/exec/ID.EXEC         streams of a command run in a container
//	RunDir/logs/ID-json.log     output, unless Options name another place
//	RunDir/nerdctl              what nerdctl reads with this as its --data-root
//	RunDir/mounts/ID            where a root file system is mounted while an image is read
//	RunDir/mounts/ID.N          where a part of a volume is bound while a container starts
//	RunDir/mounts/ID.sN         where a path of the device is bound while a container starts
//	RunDir/runc                 runc's records of containers
//	/NAMESPACE/P/ID             the control group
//
// # Invariants
//
// Everything known about a container is in its [Labels], except the content of configs and
// secrets. A container never changes after its creation, apart from three labels (a one-shot
// service is done, it is being stopped, what it depends on) and what only a start can tell:
// devices and the namespaces of others. Its ID follows from its configuration, so creating it
// twice is the same as creating it once.
//
// Anonymous volumes belong to a replica and a place, so a replica's new container gets the old
// one's content. Only [Containers.RemoveVolume] deletes volumes. One with a type is mounted
// while a container names it; two definitions of one name are mounted side by side.
//
// # Failure model
//
// Create, Start, Stop and Delete may be repeated after a kill at any instruction. The record
// is written last, and deleted before what lies outside containerd: what has no record is
// removed by the next process before it makes anything. A snapshot without a record is
// collected by containerd's gc when its lease ends, or replaced by a repeated Create. A record
// without a snapshot gets a new one when it is started. A task that was created and not
// started is deleted and created again, as is one whose shim is gone; orphaned processes are
// found by their control group and killed first. The next process ends the commands of a
// killed one.
//
// Devices of the machine and CDI files are looked up at each start: a container with devices
// keeps its specification without them, and a start writes the completed one only if it
// differs.
//
// A shim may stop responding. Each call to one has a deadline, and ends with the shim's grace
// time; listing containers hardly waits: those of a silent shim are Unresponsive. A shim that
// stays silent is found as the parent of its containers' processes, and killed with all of
// them; containerd then reports that they have ended. A container can block runc forever, by
// a FIFO in place of a file that runc reads: then only that runc is killed, and the start fails.
//
// A limit that the kernel cannot set is dropped with a warning if Docker does so; otherwise the
// container is refused when it is created.
//
// Containers may write where others mount from. A container mounts the path of the device that
// was judged when the project was loaded, and at each start that must be a path without links:
// a link made in its way since then fails the start, and a path that now leads elsewhere by
// another link is not followed there. A container that is made again uses the same judgement.
//
// Images are hostile: /etc/passwd and /etc/group are read within bounds, and no path in an image
// or a volume leads out of it, even if links change meanwhile.
package container
