// Package network gives every service replica its place on the network: a
// bridge per project network, a sandbox (a pinned network namespace with one
// fixed address) per replica, hosts and resolv.conf files, and published
// ports. It speaks netlink to the kernel and calls no program. It knows
// neither Compose nor containers: a container joins a sandbox by the path of
// its namespace, and the next container of the same replica joins it again.
//
// # What it owns
//
//	mgl-<hash>                     a bridge, one per project network
//	mgv-<hash>                     the host's end of a replica's veth pair
//	RunDir/netns/<replica>         the replica's namespace, held by a bind mount
//	RunDir/hosts/<replica>/        hosts, resolv.conf, hostname
//	RunDir/forwarding              present while forwarding is on only for us
//	table ip margolite             every rule, see [Networks.SyncPorts]
//
// Names are hashes of what they stand for, so that nothing has to be
// remembered: whoever knows the project, the service and the number finds the
// link, the file and the namespace. One agent owns these names in one network
// namespace of the host.
//
// # Invariants
//
// Every function may be repeated after it was killed at any instruction, and
// then ends in the same state; Ensure functions repair whatever is missing or
// wrong, Remove functions also remove what is only half there. Nothing outside
// the names above is changed, save net.ipv4.ip_forward, which is switched on
// while there are networks. The rules never accept what the host's own firewall drops:
// they translate addresses, and they drop packets for our bridges.
//
// # Beside other firewalls
//
// A packet passes only where every table lets it pass. A host that drops what
// it forwards, as OpenWrt's fw4 and Docker do, has to be told of our bridges:
// on OpenWrt by a zone of the subnets of the pools, which may forward to wan
// and to which lan may forward; for Docker by rules in DOCKER-USER. A
// translation that the host makes itself for the same port wins over ours.
// Reloading Debian's nftables flushes every
// table; calling SyncPorts again brings ours back.
//
// Where forwarding was off, it is switched on for containers only: between the
// links that were there the rules go on dropping what was not forwarded
// before. With the last network it goes off again, unless links have come since
// whose owner may count on it; then the rules stay.
//
// # IPv6
//
// Only IPv4 is offered. IPv6 is switched off on the bridges and in the
// sandboxes, so that no packet passes around the rules.
//
// # Failure model
//
// Workloads keep their network while the agent is stopped: namespaces, links,
// files and rules live in the kernel and in RunDir. A reboot leaves nothing
// but plain files in RunDir where that is not a tmpfs; these are recognised
// and replaced. RunDir has to be seen by the program that joins the
// namespaces: it must not lie in a mount namespace of the agent's own.
package network
