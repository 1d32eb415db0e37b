// Package runtime runs Compose projects on containerd.
//
// It owns everything on the device that belongs to a project: container
// records, snapshots and tasks in containerd, volumes and extracted archives
// in the state directory, network namespaces, hosts files and logs in the run
// directory, and the tables of nftables that are called margolite. It knows
// Compose, not who asks for it.
//
// # Invariants
//
// What runs is read, never remembered. Each container carries labels that say
// which project, service and configuration it is, and details: which addresses
// and ports it has, when it is to be restarted, how it is probed. The difference
// between these and the wanted project is a Plan: groups of sequences of steps,
// those of one group side by side, as far as they can be done now. Apply and
// Remove execute it, look again and plan again until nothing is to be done, and
// wait where a condition of depends_on is not met: until a container ends or its
// health changes, both of which tell. Workers do the same: there is one loop, converge,
// with two goals.
//
// What is in memory only is learned again after a restart.
//
// # Who owns which state
//
//	containers        records with labels and details, snapshots, tasks; volumes and files of containers (room container)
//	images            content, snapshots of layers, downloads (room image)
//	networks          sandboxes, links, rules, hosts files, DNS (room network)
//	Engine.places     claims: addresses, names and ports of projects that are being changed and have no containers yet
//	Engine.projects   all else that is known of projects, under one lock: who works on one, what has happened to it, when
//	                  it is due, what it waits for, what was made last, how often its containers ended
//	project.seen      what the worker of a project saw last
//	run               one way of one project to what is wanted; whoever has a run has the project
//	packages          StateDir/projects: extracted packages
//	Engine.hooked     RunDir/started: which process of a container had its commands of post_start
//	Engine.health     the probes, and what they found
//
// A project is changed by one goroutine at a time: a caller of Apply or Remove, or its
// worker, which looks once and leaves the project to changes. Run owns the workers: it
// waits for them before it returns.
//
// # The way of one apply
//
//	Load    -> packages (Extract), compose.Load
//	Stage   -> images
//	Apply   -> projects.take    the worker leaves the project, or is ended
//	        -> places.claim     locate finds the place, and refuses what others have
//	        -> converge: find   records, states, sandboxes, networks, volumes, ports   <----------+
//	           PlanFor          pure: what can be done now, and what has to wait                  |
//	           carryOut         steps: containers, networks, places.syncPorts                     |
//	           applying.idle:   wait for news (an exit, health, another project) -----------------+
//	        -> settled: the project is let go, a worker looks at it; packages.forget
//
// # The way of one exit
//
//	process ends -> shim -> containerd's event -> watch -> projects.heard: news of its project, and a worker if it has
//	none; of a container that is not known, supervisor.look finds out the project first
//	worker: tend, unless a change has the project: that waits for the same news, and a worker looks when it is let go
//	restore: converge to what the labels say: find, compare -> Changes -> the agent's report,
//	         history.note (when it is due by its restart policy), PlanFor, carryOut
//	the worker ends; news, or the alarm of what is due, starts another one
//
// # The way of one published port
//
//	Compose ports -> compose.Port -> locate: addresses of the sandbox, a free port of the device where none is given,
//	which network.CheckPort lets pass
//	-> claim -> details of the container, which is the record of it
//	-> step "sync ports", of Apply or a worker: places.syncPorts -> network.SyncPorts, for all projects at once
//	-> nftables tables of the owner; network.Run makes them again when somebody else changes them
//
// The image, the addresses and the configuration of a container never change:
// another configuration is another container, with another id. A container
// lives in the sandbox of its replica (a network namespace that is pinned
// outside any container), or in that of another one, so names, addresses and
// ports outlast it. A network belongs to whoever names it: projects that give
// the same name share it, and it goes with the last container that was made for
// it.
//
// # Failure model
//
// The process may be killed between any two instructions: each step is safe to
// repeat, and the next Apply or Remove of the same project converges. Shims,
// and with them whole projects, may die at any time: Run brings them back, the
// first time at once, and ever more rarely what keeps failing.
// After a reboot the run directory is empty and there are no tasks; Run builds
// networks, sandboxes and ports again from the labels and starts the containers
// when what they depend on allows it, without a network and without the project
// that they came from. Containers without our labels are never touched.
package runtime
