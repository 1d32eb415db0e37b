# A stand-in for what margolite.mk uses of Buildroot: its commands run in the
# sources, with the Go that GO_BIN names, and install into TARGET_DIR.
D := $(SOURCES)
INSTALL := install
SED := sed -i -e
PARALLEL_JOBS := 1
MARGOLITE_SOURCE := margolite.tar.gz
MARGOLITE_PKGDIR := $(PACKAGE)
github = https://github.com/$(1)/$(2)/archive/$(3)
golang-package =
KCONFIG_ENABLE_OPT = @echo $(1)

include $(PACKAGE)/margolite.mk

.ONESHELL:
.SHELLFLAGS := -ec
# The place of the sources has a name of Buildroot's infrastructure, @D.
$(SOURCES)/.built:
	$(MARGOLITE_BUILD_CMDS)
	$(MARGOLITE_INSTALL_TARGET_CMDS)
	$(MARGOLITE_INSTALL_INIT_$(INIT))
