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
// Nothing that runs is remembered: it is read from containerd. The labels and details of a
// container give its project, service and configuration, its addresses and ports, and how
// it is restarted and probed. Their difference from the wanted project is a Plan: groups of
// sequences of steps, those of one group in parallel, as far as they can run now. Apply,
// Remove and the workers execute it in one loop, converge: they look and plan again until
// nothing is left to do, and wait for an exit or a change of health where a condition of
// depends_on is not met. State that is only in memory is rebuilt after a restart.
//
// # Who owns which state
//
//	containers        records with labels and details, snapshots, tasks; volumes and files of containers (room container)
//	images            content, snapshots of layers, downloads (room image)
//	networks          sandboxes, links, rules, hosts files, DNS (room network)
//	Engine.places     claims: addresses, names and ports of projects that are being changed and have no containers yet
//	Engine.projects   everything else about projects, under one lock: who works on one, its news, when it is due,
//	                  what it waits for, what was made last, how often its containers ended
//	project.seen      what the worker of a project saw last
//	run               one convergence of a project; its holder has the project
//	packages          StateDir/projects: extracted packages
//	Engine.hooked     RunDir/started: the process of each container that has had its post_start commands
//	Engine.health     the probes and their results
//
// A project is changed by one goroutine at a time: a caller of Apply or Remove, or its
// worker, which gives way to them. Run waits for its workers before it returns.
//
// # From Apply to a settled project
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
// # From an exit to a restart
//
//	process ends -> shim -> containerd's event -> watch -> projects.heard: news of its project, and a worker if it has
//	none; of a container that is not known, supervisor.look finds out the project first
//	worker: tend, unless a change has the project: that waits for the same news, and a worker looks when it is let go
//	restore: converge to what the labels say: find, compare -> Changes -> the agent's report,
//	         history.note (when it is due by its restart policy), PlanFor, carryOut
//	the worker ends; news, or the alarm of what is due, starts another one
//
// # From a Compose file to a published port
//
//	Compose ports -> compose.Port -> locate: addresses of the sandbox, a free port of the device where none is given,
//	which network.CheckPort lets pass
//	-> claim -> details of the container, which is the record of it
//	-> step "sync ports", of Apply or a worker: places.syncPorts -> network.SyncPorts, for all projects at once
//	-> nftables tables of the owner; network.Run restores them when others change them
//
// The image, addresses and configuration of a container never change: another configuration
// is another container, with another id. A container lives in the sandbox of its replica (a
// network namespace pinned outside any container), or in that of another replica, so names,
// addresses and ports outlast it. Projects that give a network the same name share it; it
// goes with the last container made for it.
//
// # Failure model
//
// The process may be killed between any two instructions: each step is safe to repeat, and
// the next Apply or Remove of the project converges. Shims, and with them whole projects,
// may die at any time: Run restores them, at first immediately, then with increasing delays
// for what keeps failing. A reboot leaves no run directory and no tasks: Run rebuilds
// networks, sandboxes and ports from the labels and starts the containers when their
// dependencies allow it, needing neither a network nor the project's files. Containers
// without our labels are never touched.
package runtime
