// Package agent is the device agent: it fetches what the Workload Fleet
// Manager (WFM) wants, verifies it, stages it, waits for the gate, applies it
// and reports each step. It alone translates between the documents of the wire
// (agent/margo), the records of the store, and Compose projects of the runtime.
//
// # Owners
//
// Three owners of goroutines make the agent, all started by [Agent.Run] and
// joined before it returns:
//
//   - the poller asks the WFM for the state manifest and accepts it in one
//     transaction, with the documents that it names and the records that it
//     changes; of many documents most are in the store before, where nothing
//     refers to them yet;
//   - the reconciler moves each deployment towards what was accepted, one
//     worker a deployment, one change of the runtime at a time;
//   - the reporter delivers status reports from the outbox of the store, in
//     order, at least once.
//
// They do not pass data to one another. Who changes the store pokes the others,
// and they read again.
//
// # What survives
//
// Everything that decides is in the store, written before it is acted upon:
// killing the process between any two instructions leaves a record that says
// which step to repeat, and each step is safe to repeat. What runs is never
// remembered: it is read from the runtime. For how long the WFM asked not to be
// called is in the store, too, and so are the update locks that people hold; those
// that workloads hold end with the process that holds them, since the kernel
// keeps them. Backoff, progress and events are in memory only.
//
// When the store itself is lost, or a part of it, what runs stays as it is and is
// taken over with the next manifest; what was lost is asked for, and told, again.
//
// # Mistakes
//
// A panic is the failure of what was being done, and of nothing else (package
// runtime/contain): a deployment, which fails with it and is tried again, a poll, a
// round of the reporter, a look at the machine. Turns and locks are given back. The
// reconciler's own loop is not contained: its workers would go on without it; the
// process ends, and is started again. A loop that does not get on is noticed by
// [Agent.Alive], for a watchdog that ends the process.
//
// # Settings
//
// Most of the configuration may change while the agent runs: [Agent.Configure]
// replaces the [Settings] as a whole, and each piece of work goes on with those
// it read when it began.
package agent
