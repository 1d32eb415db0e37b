SUMMARY = "Margo device agent for small machines"
DESCRIPTION = "Runs what a Workload Fleet Manager publishes as containers, without Docker: \
fetches it, verifies every byte, and reports each step. Needs no network once something is installed."
HOMEPAGE = "https://github.com/margolite/margolite"
BUGTRACKER = "https://github.com/margolite/margolite/issues"
SECTION = "admin"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"

CVE_PRODUCT = "margolite"

# The programs are static and pure Go: the compiler of the build machine builds them
# for every target, without a C compiler.
DEPENDS += "go-native"

PV = "0.1.0+git"

# The distribution chooses the commit. ${AUTOREV} would need the network at each
# parse, even where the layer is only present.
MARGOLITE_SRCREV ??= ""
SRC_URI = "git://github.com/margolite/margolite;protocol=https;branch=main;destsuffix=${BPN}-source"
SRCREV = "${MARGOLITE_SRCREV}"

python () {
    if not d.getVar("MARGOLITE_SRCREV"):
        raise bb.parse.SkipRecipe("MARGOLITE_SRCREV names no commit to build")
}

# Sources lie in WORKDIR in scarthgap, and in UNPACKDIR since.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${BPN}-source"
B = "${WORKDIR}/build"

# "embedded" is the containerd inside margolite. The socket of the image's own
# containerd (/run/containerd/containerd.sock) uses that one and leaves out the shim.
MARGOLITE_CONTAINERD ??= "embedded"

inherit goarch systemd update-rc.d

COMPATIBLE_HOST = "(x86_64|aarch64|arm|riscv64).*-linux"
INHIBIT_DEFAULT_DEPS = "1"
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_PACKAGE_DEBUG_SPLIT = "1"

# The modules come from the Go proxy, verified by go.sum.
do_compile[network] = "1"

do_configure[noexec] = "1"

# The Makefile of the sources has each program's tags and compiler switches.
# -modcacherw keeps the cache removable. The agent accepts no time earlier than that
# of the sources.
do_compile() {
    export GOOS=linux GOARCH=${TARGET_GOARCH} GOARM=${TARGET_GOARM} GOTOOLCHAIN=local
    export GOPATH=${WORKDIR}/go GOCACHE=${WORKDIR}/go-cache GOFLAGS=-modcacherw
    oe_runmake -C ${S} GO=go OUT=${B} VERSION=${PV} COMMIT= TIME="$SOURCE_DATE_EPOCH" device
}

do_install() {
    install -D -m 0755 ${B}/margolite ${D}${bindir}/margolite
    install -D -m 0755 ${B}/margolite-init ${D}${libexecdir}/margolite/margolite-init
    if [ "${MARGOLITE_CONTAINERD}" = embedded ]; then
        install -D -m 0755 ${B}/containerd-shim-runc-v2 ${D}${libexecdir}/margolite/containerd-shim-runc-v2
    fi
    install -D -m 0644 ${S}/packaging/config.yaml ${D}${sysconfdir}/margolite/config.yaml
    sed -i 's,^  containerd: embedded$,  containerd: ${MARGOLITE_CONTAINERD},' ${D}${sysconfdir}/margolite/config.yaml
    install -d -m 0700 ${D}${sysconfdir}/margolite/provision.d
    install -d ${D}${datadir}/margolite/images
    if ${@bb.utils.contains('DISTRO_FEATURES', 'systemd', 'true', 'false', d)}; then
        install -D -m 0644 ${S}/packaging/margolite.service ${D}${systemd_system_unitdir}/margolite.service
        install -D -m 0644 ${S}/packaging/provision/media-margolite.mount ${D}${systemd_system_unitdir}/media-margolite.mount
    fi
    if ${@bb.utils.contains('DISTRO_FEATURES', 'sysvinit', 'true', 'false', d)}; then
        install -D -m 0755 ${S}/packaging/buildroot/package/margolite/S95margolite ${D}${sysconfdir}/init.d/margolite
    fi
}

SYSTEMD_SERVICE:${PN} = "margolite.service"
INITSCRIPT_NAME = "margolite"
INITSCRIPT_PARAMS = "defaults 95 10"

FILES:${PN} += "${datadir}/margolite ${systemd_system_unitdir}"
CONFFILES:${PN} = "${sysconfdir}/margolite/config.yaml"

VIRTUAL-RUNTIME_container_runtime ??= "virtual-runc"
RDEPENDS:${PN} = "${VIRTUAL-RUNTIME_container_runtime} ca-certificates \
    ${@'' if d.getVar('MARGOLITE_CONTAINERD') == 'embedded' else 'virtual-containerd'}"
# It replaces the former package for the containerd of the image.
RREPLACES:${PN} = "margolite-slim"
RCONFLICTS:${PN} = "margolite-slim"
# A kernel that has them built in has no such packages.
RRECOMMENDS:${PN} = "kernel-module-overlay kernel-module-bridge kernel-module-veth kernel-module-nf-tables \
    kernel-module-nft-ct kernel-module-nft-chain-nat kernel-module-nft-nat kernel-module-nft-masq \
    kernel-module-nft-fib-ipv4 kernel-module-nf-conntrack-netlink"
