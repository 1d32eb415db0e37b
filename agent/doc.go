// Package agent is the device agent: it fetches what the Workload Fleet Manager (WFM) wants,
// verifies it, stages it, waits for the gate, applies it and reports each step. It alone
// translates between the documents of the wire (agent/margo), the records of the store, and
// Compose projects of the runtime.
//
// # Owners
//
// [Agent.Run] starts three owners of goroutines and joins them before it returns:
//
//   - the poller asks the WFM for the state manifest and accepts it in one transaction,
//     with the documents that it names and the records that it changes; most of a large
//     set of documents is in the store before, where nothing refers to them yet;
//   - the reconciler moves each deployment towards what was accepted, one worker a
//     deployment, one change of the runtime at a time;
//   - the reporter delivers status reports from the outbox of the store, in order, at
//     least once.
//
// They pass no data to one another: a change to the store pokes the others to read again.
//
// # What survives
//
// Everything that decides is in the store, written before it is acted upon: killing the process
// between any two instructions leaves a record that says which step to repeat, and each step is
// safe to repeat. What runs is never remembered: it is read from the runtime. The store also has
// the WFM's requests for silence and the update locks of people; the locks of workloads are in
// the kernel, and end with the process that holds them. Backoff, progress and events are in
// memory only.
//
// When the store is lost, as a whole or in part, what runs stays and is taken over with the next
// manifest; what was lost is fetched and reported again.
//
// # Mistakes
//
// A panic fails only the work that it happens in (package runtime/contain): a deployment, which
// is retried, a poll, a round of the reporter, a look at the machine. Turns and locks are given
// back. Only the reconciler's own loop is not contained, since its workers would go on without
// it: the process ends and is restarted. [Agent.Alive] detects a stuck loop, for a watchdog that
// ends the process.
//
// # Settings
//
// Most of the configuration may change while the agent runs: [Agent.Configure] replaces the
// [Settings] as a whole, and work in progress keeps those that it read when it began.
package agent
