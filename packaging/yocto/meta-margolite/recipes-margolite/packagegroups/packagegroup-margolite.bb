SUMMARY = "Everything that a Margo device needs"
DESCRIPTION = "The agent with what signed packages and desired states in Git repositories need."
SECTION = "admin"
LICENSE = "Apache-2.0"

inherit packagegroup

RDEPENDS:${PN} = "margolite ca-certificates tzdata-core"
RRECOMMENDS:${PN} = "git gnupg-gpg"
