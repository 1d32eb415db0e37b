SUMMARY = "Everything that a Margo device needs"
DESCRIPTION = "The agent, and what signed packages and desired states in Git repositories need."
SECTION = "admin"
LICENSE = "Apache-2.0"

inherit packagegroup

MARGOLITE_FLAVOUR ??= "margolite"

RDEPENDS:${PN} = "${MARGOLITE_FLAVOUR} ca-certificates tzdata-core"
RRECOMMENDS:${PN} = "git gnupg-gpg"
