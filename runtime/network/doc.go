// Package network gives every service replica its place on the network: a bridge per
// network, a sandbox (a pinned network namespace with fixed addresses) per replica, hosts and
// resolv.conf files, DNS, and published ports. It speaks netlink to the kernel, through
// vishvananda/netlink and google/nftables, and runs no program. It knows neither Compose nor
// containers: a container joins a sandbox by the path of its namespace, and so does the next
// container of the same replica.
//
// # What it owns
//
//	mgl-<owner><network>           a bridge, one per network
//	mgv-<replica><network>         the host's end of a replica's veth pair
//	eth0.100                       a VLAN that is the parent of a macvlan or ipvlan network,
//	                               if it was missing: identified by its alias
//	RunDir/netns/<replica>         the replica's namespace, held by a bind mount
//	RunDir/hosts/<replica>/        hosts, resolv.conf, hostname, on a small tmpfs
//	RunDir/forwarding, forwarding6 the former settings, while forwarding is on only for us
//	table ip margolite             every rule, see [Networks.SyncPorts]
//	table ip6 margolite            the same, while a network has IPv6
//	table ip[6] margolite_alive    empty, while an agent watches, see [Networks.Run]
//
//	in a sandbox: table ip margolite-dns   leads 127.0.0.11:53 to the sockets of the agent
//
// Names are hashes of what they stand for, so nothing has to be remembered: network, project,
// service and number lead to the link, the files and the namespace. In a sandbox, eth0, eth1
// and so on are ours; other links and their routes are the container's.
//
// # Owners
//
// Workloads outlive the margolite that made them, and another one, with another state
// directory, may run beside them. Everything made on a host carries the mark of its owner, a
// hash of the resolved path of the state directory, and only its owner changes or removes it:
//
//	links       the alias: margolite <network> @<owner> <state directory>
//	rules       a chain of the table: owner_<owner>
//	files       the device of their tmpfs: margolite:<owner>:<state directory>
//	namespaces  the run directory, which one owner has at a time
//
// Names of links contain the owner in their hash. The table is margolite for the first owner
// of a host and margolite-<owner> for the next; packets pass all tables, each of which
// mentions its own bridges only. Subnets that the host has or routes, such as another owner's,
// are never chosen. A port that another owner has published is in use, its VLANs are not
// shared, and its run directory is refused: the error names its state directory. Forwarding
// stays on while others have bridges.
//
// # Invariants
//
// Every function may be repeated after a kill at any instruction, and then ends in the same
// state: Ensure functions repair whatever is missing or wrong, Remove functions also remove
// what is incomplete. Nothing outside the names above is changed, except the switches for
// forwarding, which are on while there are networks. The rules never accept what the host's
// own firewall drops: they translate addresses, and drop packets for our bridges.
//
// # Files that containers may write
//
// A container can write the files of its sandbox, so they are hostile input: huge, full, or
// under a lease. They are never read: their intended content is kept in memory, and written
// if it changed or the present content is unknown, as after a start. Writing waits for no
// lease and holds no lock; a container that blocks it delays only changes of its own files,
// which are retried. Each sandbox has a tmpfs of its own, so that it fills no one else's; its
// pages are charged to the container that writes them. It is unmounted, lazily, with the
// sandbox.
//
// # Names
//
// The hosts file of a sandbox names every replica that shares a network with it, so names
// resolve while no agent runs. The loader decides which names are valid; here they are
// written unchecked. For programs that ask a nameserver, [Networks.Serve] answers on
// 127.0.0.11:53 in each sandbox from the same hosts file, starting with another replica each
// time. All other queries are forwarded to the nameservers of the service as its programs
// would do it, or else to the host's, from the host; not for a sandbox that has only internal
// networks. While no agent runs, a query is refused at once, and the program asks the next
// nameserver of resolv.conf: one of the host's, which knows no services. Queries are limited
// in number and rate per sandbox, and in number for all. [Networks.RefreshFiles] applies
// changes of the host's resolv.conf and hosts file to the sandboxes.
//
// # Published ports and the host's firewall
//
// A translated packet is forwarded: it bypasses the rules that guard the host itself, and a
// published port would be open to the whole internet behind a firewall that lets nothing in.
// So if a chain at the hook input may refuse something, the first packet of each connection
// takes the way of packets for the host. If it reaches the end, the host's firewall let it
// pass, and a chain of ours there sends a copy of it to the host's own address, as the host
// itself would; this one is translated, and with it what follows. The kernel does all that, so
// it needs no agent, and a change of the host's rules applies to all new connections at once.
// Open connections go on, as with stateful rules of the host. A ct mark that the host's rules
// gave the first packet is lost. A firewall that filters what the host sends has to let the
// loopback pass. Of the older iptables only the presence of filters is seen. The host itself
// and containers are not guarded against; [PublishOpen] guards nothing. A kernel that cannot
// copy packets publishes ports for the host and containers only.
//
// # Beside other firewalls
//
// A packet passes only if every table lets it pass. A host that drops forwarded packets, as
// OpenWrt's fw4 and Docker do, has to be told of our bridges: [Advice] says how. The host's
// own translation of a port wins over ours. Reloading Debian's nftables flushes every table;
// [Networks.Run] notices and restores ours at once, and connections survive.
//
// If forwarding was off, it is switched on for containers only: the rules drop what is neither
// from nor to a bridge of ours, even on links that come later, except between links that
// forwarded by a setting of their own. With the last network all former settings return.
// Anything else that routes, such as Docker, has to switch forwarding on before us.
//
// # What is added to the libraries
//
// Every answer of the kernel has a deadline. A list that changed while the kernel wrote it is
// listed again; google/nftables does not notice, so the generation of the ruleset is compared.
// In the namespace of a container others may send as well: connections accept only the kernel,
// and where vishvananda/netlink does not allow that, disturbed operations are repeated. A
// container can make lists of any length: they are read piece by piece, and what is kept is
// bounded. A decoder that panics on foreign data fails that one operation. Goroutines of ours
// receive changes, and end with their owner.
//
// # Damage
//
// Repair is setup. Whatever sets something up compares a survey of the host, one list of its
// links, addresses and routes, with what is wanted, and makes each change through the survey.
// [Networks.Run] first calls the same functions only to look: then the survey makes no change,
// but names the one it would have made.
//
//	rules ------------------------------ at once --+
//	links, addresses, routes, forwarding --+       |
//	removed files, unpinned namespaces ----+-0.3s--+--> note what was heard --> survey --> compare
//	                                                                                          |
//	   in order, if nothing more was heard <---------------- nothing differs <----------------+
//	   set up again, less often each time  <---------------- something does  <----------------+
//
// The content of the kernel's messages is not read: a look tells more. Under constant news Run
// looks less often, so that it takes a twentieth of the time. What it hears during a look, its
// own changes included, leads to another look. What breaks again and again is repaired at
// intervals that grow to a minute; only rules are restored each time, because they keep closed
// what is closed. [Networks.InOrder] looks itself if Run has not looked yet, so that intact
// things are not set up again.
//
// Inside its namespace a container may do as it likes, except that a pair of links that lost
// one end is made again. A namespace that is no longer pinned ends with its last process, so
// [Networks.Adopt] pins it again through that process, if it has the sandbox's end of a link;
// containers then go on. Running containers keep their files: files that are made again after
// they were unmounted take effect at the next start.
//
// # IPv6
//
// A network has IPv6 if it is asked for: from a private range of the machine's own (RFC 4193),
// masqueraded like IPv4. Otherwise IPv6 is switched off on the bridges and in the sandboxes,
// so that no packet bypasses the rules. Addresses inside come from us alone: no router
// advertisements, no autoconfiguration, no duplicate detection.
//
// A host that forwards IPv6 stops listening to its routers, which would cost it its own address
// and its way out: links with accept_ra=1, including later ones, get accept_ra=2 before
// forwarding is switched on, and 1 again after it was switched off. A program that configures
// addresses, such as systemd-networkd, needs its own setting to listen to routers
// (IPv6AcceptRA=yes). The host does not reach published ports by ::1.
//
// # macvlan and ipvlan
//
// Such a link sits on a link of the host and has an address of the network there: none of our
// rules apply to it, and the host itself does not reach it. It ends with its namespace.
//
// # Failure model
//
// Workloads keep their network while the agent is stopped: namespaces, links, files and rules
// live in the kernel and in RunDir. A reboot leaves at most plain files in RunDir, if that is
// not a tmpfs; these are recognised and replaced. RunDir must be visible to the program that
// joins the namespaces, so it must not lie in a mount namespace of the agent's own.
package network
