require margolite.inc

SUMMARY += "(containerd inside)"

MARGOLITE_TARGET = "full"
MARGOLITE_CONTAINERD = "embedded"

RCONFLICTS:${PN} = "margolite-slim"
