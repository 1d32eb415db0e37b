require margolite.inc

SUMMARY += "(on the containerd of the system)"

MARGOLITE_TAGS = "no_grpc,osusergo,netgo,slim"
MARGOLITE_SHIM = "0"
MARGOLITE_CONTAINERD = "/run/containerd/containerd.sock"

RDEPENDS:${PN} += "virtual-containerd"
RCONFLICTS:${PN} = "margolite"
