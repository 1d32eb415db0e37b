// Package git reads the desired state from a Git repository, as the first form of the standard
// publishes it (DS-27): one branch with a folder that holds one file per ApplicationDeployment. A
// device that is a member of groups also takes the documents of their folders.
//
// It owns the system's git program: how it is found and started, what it may do, and the work
// folder with the shallow copy of the branch. The meaning of documents is agent/margo's; when to
// poll and what to do with the answer is the caller's, who gets the same as from agent/wfm for the
// later forms of the standard: a state manifest, and the documents that it names.
//
// It also writes the current state back into the repository, on a branch of its own (ST-19): see
// [Reports].
//
// # The state manifest of a commit
//
// Every plain file below the folders whose name ends in .yaml or .yml is read. An
// ApplicationDeployment of any revision is a deployment with the id it carries and the SHA-256 of
// its bytes; other YAML is ignored. The manifest and its digest are functions of the commit; its
// ETag is the commit's id.
//
// The version is also computed from the commits: a thousand times the committer time in Unix
// seconds, and at least one more than that of the first parent. It depends on the last commits of
// the branch, see history. Thus a push is newer, a revert is newer, and a branch that was reset to
// an older commit is older and refused by callers that refuse older manifests.
//
// # Invariants
//
//   - A poll that finds the branch unchanged only asks for the commit's id: nothing is
//     fetched or written.
//   - An incomplete desired state is refused as a whole: a missing branch, a file that may or
//     may not be a deployment, a symbolic link or another repository below the folder, two
//     documents of one deployment.
//   - An empty desired state must be intended: the commit has files, and none below the folder
//     is a deployment, or the folder was removed with its last document in one of the fetched
//     commits. A tree without files, and a folder that never existed, are mistakes and refuse
//     the commit. The same holds if the folder is the whole tree, and for each of several.
//   - Documents are handed out only with the digest that the manifest names.
//   - Git speaks only https and only to the configured origin. It follows no redirect, runs
//     no hook, credential helper or submodule, and reads no configuration but ours.
//   - The token is in git's environment and nowhere else: in no argument, file, error or log.
//   - What a server can make git do is bounded: bytes written and held, time, speed, entries
//     of the tree, documents.
//
// # Failure model
//
// A failure to reach or read the repository is an [*Error] with a Reason. Unacceptable content is
// margo.Errors or wfm.ErrTooLarge, as with any WFM; the commit is remembered and not fetched again.
// The work folder is a cache: a copy damaged by a power cut, a full disk or anything else is
// noticed on use, removed and fetched again. Nothing else on the device is written.
package git
