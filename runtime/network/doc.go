// Package network gives every service replica its place on the network: a
// bridge per network, a sandbox (a pinned network namespace with fixed
// addresses) per replica, hosts and resolv.conf files, DNS, and published ports.
// It speaks netlink to the kernel, by vishvananda/netlink and google/nftables, and
// calls no program. It knows neither Compose nor containers: a container joins a
// sandbox by the path of its namespace, and the next container of the same replica
// joins it again.
//
// # What it owns
//
//	mgl-<owner><network>           a bridge, one per network
//	mgv-<replica><network>         the host's end of a replica's veth pair
//	eth0.100                       a VLAN that is the parent of a macvlan or ipvlan network,
//	                               where it was missing: by its alias
//	RunDir/netns/<replica>         the replica's namespace, held by a bind mount
//	RunDir/hosts/<replica>/        hosts, resolv.conf, hostname, on a small tmpfs
//	RunDir/forwarding, forwarding6 present while forwarding is on only for us: the settings of before
//	table ip margolite             every rule, see [Networks.SyncPorts]
//	table ip6 margolite            the same, while a network has IPv6
//	table ip[6] margolite_alive    empty, while an agent watches, see [Networks.Run]
//
//	in a sandbox: table ip margolite-dns   leads 127.0.0.11:53 to the sockets of the agent
//
// Names are hashes of what they stand for, so that nothing has to be
// remembered: whoever knows the network, the project, the service and the
// number finds the link, the file and the namespace. Inside of a sandbox, eth0,
// eth1 and so on are ours, links of other names and their routes the container's
// own.
//
// # Owners
//
// Workloads stay when the margolite that made them ends, and another one, with
// another state directory, may run beside them. What is made on a host carries
// the mark of its owner, a hash of the resolved path of the state directory, and
// only its owner changes or removes it:
//
//	links       the alias: margolite <network> @<owner> <state directory>
//	rules       a chain of the table: owner_<owner>
//	files       the device of their tmpfs: margolite:<owner>:<state directory>
//	namespaces  the run directory, which one owner has at a time
//
// Names of links have the owner in their hash. The table is margolite for the
// first owner of a host and margolite-<owner> for the next one; packets pass the
// tables of all, and each speaks of its own bridges only. Subnets that the host
// has or routes are never chosen, and so not those of others. A port that another
// owner has published is in use, a VLAN that it made is not shared, and its run
// directory is refused: the error names its state directory. Forwarding stays on
// while others have bridges.
//
// # Invariants
//
// Every function may be repeated after it was killed at any instruction, and
// then ends in the same state; Ensure functions repair whatever is missing or
// wrong, Remove functions also remove what is only half there. Nothing outside
// the names above is changed, save the switches for forwarding, which are on
// while there are networks. The rules never accept what the host's own firewall
// drops: they translate addresses, and they drop packets for our bridges.
//
// # Files that containers may write
//
// A container can write the files of its sandbox, so they are hostile input: huge,
// full, or under a lease. Nobody reads them: what they should contain is kept in
// memory, and written where it changed or where nothing is known, as after a start.
// Writing waits for no lease and holds no lock; a container that holds it up loses
// nothing but changes of its own files, which are retried. Each sandbox has a tmpfs
// for them, so that it fills no file system of others; pages are charged to the
// container that writes them. It is unmounted with the sandbox, lazily.
//
// # Names
//
// The hosts file of a sandbox names every replica that shares a network with it,
// so that names resolve while no agent runs. What a name may be, the loader says: here
// it is written as it comes. For programs that ask a nameserver,
// [Networks.Serve] answers on 127.0.0.11:53 inside of each sandbox, from the same
// hosts file, with another one of several replicas in front each time. All else is
// forwarded: to the nameservers of the service as its programs would do it, else to
// those of the host from there; for a sandbox with internal networks alone, nothing
// is. While no agent runs, a query is refused at once, and the next
// nameserver of resolv.conf is asked: one of the host's, which knows no services.
// Queries are bounded for each sandbox, also in how fast they are answered, and for all.
// [Networks.RefreshFiles] takes changes of the host's resolv.conf and hosts file over
// into the sandboxes.
//
// # Published ports and the host's firewall
//
// A translated packet is forwarded: it never comes by the rules by which a host
// guards itself, and a published port would be open to whole the internet
// behind a firewall that lets nothing in. So where a chain at the hook input may
// refuse something, the first packet of each connection goes where packets for the
// host go. If it gets to the end of that, the host's firewall let it pass, and a
// chain of ours there sends a copy of it to the host's own address, as the host
// itself would do; so it is translated, and with it what follows. The kernel does
// all that, so this needs no agent, and a change of the host's rules holds for
// all new connections at once. Connections that run go on, as they do with
// stateful rules of the host. A ct mark that the host's rules gave the first
// packet is lost. A firewall that filters what the host sends has to let the
// loopback pass. Of the older iptables it is only seen whether it filters. The
// host itself and containers are not guarded. [PublishOpen] guards
// nothing. A kernel that cannot copy packets publishes ports for the host and
// containers only.
//
// # Beside other firewalls
//
// A packet passes only where every table lets it pass. A host that drops what
// it forwards, as OpenWrt's fw4 and Docker do, has to be told of our bridges:
// [Advice] says how. A translation that the host makes itself for the same port
// wins over ours. Reloading Debian's nftables flushes every table; [Networks.Run]
// hears of it and brings ours back at once, and connections do not notice.
//
// Where forwarding was off, it is switched on for containers only: the rules drop
// what is neither from nor to a bridge of ours, also on links that come later,
// save between links that forwarded by a setting of their own. With the last
// network all settings are again what they were. Whoever routes something else,
// as Docker does, has to switch forwarding on before us.
//
// # What is added to the libraries
//
// Every answer of the kernel has a deadline. A list that changed while the kernel
// wrote it is listed again; google/nftables does not notice, so the generation of
// the ruleset is compared. In the namespace of a container others may send as well:
// connections listen to the kernel alone, and where vishvananda/netlink does not
// let them, what was disturbed is done again. A container can make lists of any
// length: they are read piece by piece, and what is kept of them is bounded. A
// decoder that panics on what others made fails that one operation. Changes are
// heard by goroutines of ours, which end with their owner.
//
// # Damage
//
// Repair is setup. What sets something up compares a survey of the host, which is one
// list of its links, addresses and routes, with what is wanted, and makes each change by
// way of the survey. [Networks.Run] has the same functions look first: then the survey
// makes no change, but says which one it would have been.
//
//	rules ------------------------------ at once --+
//	links, addresses, routes, forwarding --+       |
//	removed files, unpinned namespaces ----+-0.3s--+--> note what was heard --> survey --> compare
//	                                                                                          |
//	   in order, if nothing more was heard <---------------- nothing differs <----------------+
//	   set up again, less often each time  <---------------- something does  <----------------+
//
// No message of the kernel is read: whatever changed, a look tells more. Where there is
// always news, Run looks less often, so that it takes a twentieth of the time. What is
// heard during a look leads to another one, and so does what Run changes itself. What is
// broken again and again is repaired at intervals that grow to a minute; only rules come
// back each time, for they keep closed what is closed. [Networks.InOrder] looks itself
// where Run has not looked yet, so that what is in order is not set up again.
//
// What a container does within its namespace is its own affair, save that a pair
// of links without its other end is made anew. A namespace that is no longer
// pinned ends with its last process, so [Networks.Adopt] pins it again by way of
// that process, if it has the sandbox's end of a link; containers then go on.
// Containers that run keep the files that they have: those that are made again
// after somebody unmounted them are for the next start.
//
// # IPv6
//
// A network has IPv6 when it is asked for: from a private range of the machine's
// own (RFC 4193), masqueraded as IPv4 is. Elsewhere IPv6 is switched off on the
// bridges and in the sandboxes, so that no packet passes around the rules.
// Addresses inside come from us alone: no router advertisements, no
// autoconfiguration, no waiting for duplicates.
//
// A host that forwards IPv6 no longer listens to its routers, which would cost
// it its own address and its way out: links with accept_ra=1 get accept_ra=2
// before forwarding is switched on, also those that come later, and 1 again
// after it was switched off. Who configures addresses by a program, as
// systemd-networkd does, has to say there that routers are to be listened to
// (IPv6AcceptRA=yes). The host does not reach published ports by ::1.
//
// # macvlan and ipvlan
//
// Such a link sits on a link of the host and has an address of the network
// there: none of our rules are on its way, and the host itself does not reach
// it. It ends with its namespace.
//
// # Failure model
//
// Workloads keep their network while the agent is stopped: namespaces, links,
// files and rules live in the kernel and in RunDir. A reboot leaves nothing
// but plain files in RunDir where that is not a tmpfs; these are recognised
// and replaced. RunDir has to be seen by the program that joins the
// namespaces: it must not lie in a mount namespace of the agent's own.
package network
