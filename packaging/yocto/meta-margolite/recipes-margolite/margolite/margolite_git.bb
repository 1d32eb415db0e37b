require margolite.inc

SUMMARY += "(containerd inside)"

MARGOLITE_SHIM = "1"
MARGOLITE_CONTAINERD = "embedded"

RCONFLICTS:${PN} = "margolite-slim"
