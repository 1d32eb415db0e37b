// Package git has the desired state from a Git repository, as the first form of
// the standard publishes it (DS-27): one branch, and in it, below one folder,
// one file per ApplicationDeployment. A device that is a member of groups takes the
// documents of their folders as well.
//
// It owns the system's git program: how it is found and started, what it may
// do, and the work folder with the shallow copy of the branch. What the
// documents mean is agent/margo's, when to ask and what to do with the answer
// the caller's, who gets here what agent/wfm gives for the later forms of the
// standard: a state manifest, and the documents that it names.
//
// It also carries the current state back into the repository, onto a branch of its
// own (ST-19): see [Reports].
//
// # The state manifest of a commit
//
// Every plain file below the folders whose name ends in .yaml or .yml is read.
// One that is an ApplicationDeployment, of any revision, is a deployment with
// the id it carries and the SHA-256 of its bytes; other YAML is left alone. The
// manifest is a function of the commit, and so is its digest; its ETag is the
// commit's id.
//
// The version, too, comes from the commits: a thousand times the committer time
// in Unix seconds, and at least one more than that of the first parent. It is
// computed from the last commits of the branch, see history. Thus a push onto
// the branch is newer, a revert is newer, and a branch that was set back to an
// older commit is older, and refused by whoever refuses older manifests.
//
// # Invariants
//
//   - A poll that finds the branch at the same commit asks for that commit's id
//     and nothing else: nothing is fetched, nothing is written.
//   - Half a desired state is none. A missing branch, a file that cannot be told
//     to be a deployment or not, a symbolic link or another repository below the
//     folder, two documents of one deployment: all that refuses the commit as a
//     whole.
//   - No deployments are believed where somebody meant it: the commit has files,
//     and none of those below the folder is a deployment, or the folder went with
//     its last document in one of the commits that are fetched. A tree without any
//     file, and a folder that was never there, are mistakes and refuse the commit.
//     The same holds where the folder is the whole tree, and for each of several.
//   - Documents are given away only with the digest that the manifest names.
//   - Git speaks https to the configured origin and to nobody else. It follows
//     no redirect, runs no hook, no helper for credentials and no submodule, and
//     reads no configuration but the one it is given.
//   - The token is in git's environment and nowhere else: in no argument, file,
//     error or log.
//   - What a server can make git do is bounded: the bytes that are written and
//     held, the time, the speed, the entries of the tree, the documents.
//
// # Failure model
//
// What cannot be mended by asking again is an [*Error] with a Reason. Content
// that is not acceptable is margo.Errors or wfm.ErrTooLarge, as with any WFM;
// the commit is then remembered and not fetched again. The work folder is a
// cache: a copy that a power cut, a full disk or anybody else has damaged is
// noticed when it is used, removed and fetched anew. Nothing else on the device
// is written.
package git
