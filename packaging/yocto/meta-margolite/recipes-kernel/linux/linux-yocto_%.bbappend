FILESEXTRAPATHS:prepend := "${THISDIR}/files:"

SRC_URI += "file://margolite.cfg"
