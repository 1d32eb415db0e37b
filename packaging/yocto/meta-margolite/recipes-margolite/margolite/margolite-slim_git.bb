require margolite.inc

SUMMARY += "(on the containerd of the system)"

MARGOLITE_TARGET = "slim"
MARGOLITE_CONTAINERD = "/run/containerd/containerd.sock"

RDEPENDS:${PN} += "virtual-containerd"
RCONFLICTS:${PN} = "margolite"
