################################################################################
#
# margolite
#
################################################################################

MARGOLITE_VERSION = 0.1.0
MARGOLITE_SITE = $(call github,margolite,margolite,v$(MARGOLITE_VERSION))
MARGOLITE_LICENSE = Apache-2.0
MARGOLITE_LICENSE_FILES = LICENSE
MARGOLITE_GOMOD = github.com/margolite/margolite

# The archive includes the modules, which go.sum verifies. Its hash depends on the
# version of Buildroot. To pin the hash, remove this line.
BR_NO_CHECK_HASH_FOR += $(MARGOLITE_SOURCE)

# The Makefile of the sources has each program's tags and compiler switches. All
# programs are static and fit any C library. In a reproducible image, the agent
# accepts no time earlier than that of the image.
define MARGOLITE_BUILD_CMDS
	$(HOST_GO_TARGET_ENV) GOFLAGS="-mod=vendor -p=$(PARALLEL_JOBS)" \
		$(MAKE) -C $(@D) GO=$(GO_BIN) OUT=bin VERSION=$(MARGOLITE_VERSION) \
		COMMIT= TIME=$(SOURCE_DATE_EPOCH) device
endef

# The shim belongs to the containerd inside margolite.
ifeq ($(BR2_PACKAGE_MARGOLITE_CONTAINERD),y)
define MARGOLITE_INSTALL_CONTAINERD
	$(SED) 's,^  containerd: embedded$$,  containerd: /run/containerd/containerd.sock,' \
		$(TARGET_DIR)/etc/margolite/config.yaml
endef
else
define MARGOLITE_INSTALL_CONTAINERD
	$(INSTALL) -D -m 0755 $(@D)/bin/containerd-shim-runc-v2 \
		$(TARGET_DIR)/usr/libexec/margolite/containerd-shim-runc-v2
endef
endif

define MARGOLITE_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/bin/margolite $(TARGET_DIR)/usr/bin/margolite
	$(INSTALL) -D -m 0755 $(@D)/bin/margolite-init \
		$(TARGET_DIR)/usr/libexec/margolite/margolite-init
	$(INSTALL) -D -m 0644 $(@D)/packaging/config.yaml \
		$(TARGET_DIR)/etc/margolite/config.yaml
	$(INSTALL) -d -m 0700 $(TARGET_DIR)/etc/margolite/provision.d
	$(INSTALL) -d -m 0755 $(TARGET_DIR)/usr/share/margolite/images
	$(MARGOLITE_INSTALL_CONTAINERD)
endef

define MARGOLITE_INSTALL_INIT_SYSV
	$(INSTALL) -D -m 0755 $(MARGOLITE_PKGDIR)/S95margolite \
		$(TARGET_DIR)/etc/init.d/S95margolite
endef

define MARGOLITE_INSTALL_INIT_SYSTEMD
	$(INSTALL) -D -m 0644 $(MARGOLITE_PKGDIR)/margolite.service \
		$(TARGET_DIR)/usr/lib/systemd/system/margolite.service
endef

# The same as kernel/margolite.config, without what only some workloads ask for.
define MARGOLITE_LINUX_CONFIG_FIXUPS
	$(call KCONFIG_ENABLE_OPT,CONFIG_NAMESPACES)
	$(call KCONFIG_ENABLE_OPT,CONFIG_UTS_NS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_IPC_NS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_PID_NS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NET_NS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_SYSVIPC)
	$(call KCONFIG_ENABLE_OPT,CONFIG_POSIX_MQUEUE)
	$(call KCONFIG_ENABLE_OPT,CONFIG_CGROUPS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_CGROUP_FREEZER)
	$(call KCONFIG_ENABLE_OPT,CONFIG_CGROUP_DEVICE)
	$(call KCONFIG_ENABLE_OPT,CONFIG_BPF_SYSCALL)
	$(call KCONFIG_ENABLE_OPT,CONFIG_CGROUP_BPF)
	$(call KCONFIG_ENABLE_OPT,CONFIG_MEMCG)
	$(call KCONFIG_ENABLE_OPT,CONFIG_CGROUP_SCHED)
	$(call KCONFIG_ENABLE_OPT,CONFIG_FAIR_GROUP_SCHED)
	$(call KCONFIG_ENABLE_OPT,CONFIG_CFS_BANDWIDTH)
	$(call KCONFIG_ENABLE_OPT,CONFIG_CPUSETS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_CGROUP_PIDS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_OVERLAY_FS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_TMPFS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_UNIX98_PTYS)
	$(call KCONFIG_ENABLE_OPT,CONFIG_TMPFS_XATTR)
	$(call KCONFIG_ENABLE_OPT,CONFIG_SECCOMP)
	$(call KCONFIG_ENABLE_OPT,CONFIG_SECCOMP_FILTER)
	$(call KCONFIG_ENABLE_OPT,CONFIG_BRIDGE)
	$(call KCONFIG_ENABLE_OPT,CONFIG_VETH)
	$(call KCONFIG_ENABLE_OPT,CONFIG_INET)
	$(call KCONFIG_ENABLE_OPT,CONFIG_UNIX)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NETFILTER)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NETFILTER_ADVANCED)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NF_CONNTRACK)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NF_CONNTRACK_ZONES)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NF_CT_NETLINK)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NF_NAT)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NF_TABLES)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NF_TABLES_IPV4)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NFT_CT)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NFT_NAT)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NFT_MASQ)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NFT_FIB_IPV4)
	$(call KCONFIG_ENABLE_OPT,CONFIG_NFT_DUP_IPV4)
	$(call KCONFIG_ENABLE_OPT,CONFIG_EPOLL)
	$(call KCONFIG_ENABLE_OPT,CONFIG_EVENTFD)
	$(call KCONFIG_ENABLE_OPT,CONFIG_SIGNALFD)
	$(call KCONFIG_ENABLE_OPT,CONFIG_TIMERFD)
	$(call KCONFIG_ENABLE_OPT,CONFIG_INOTIFY_USER)
	$(call KCONFIG_ENABLE_OPT,CONFIG_FUTEX)
	$(call KCONFIG_ENABLE_OPT,CONFIG_FHANDLE)
	$(call KCONFIG_ENABLE_OPT,CONFIG_FILE_LOCKING)
	$(call KCONFIG_ENABLE_OPT,CONFIG_KEYS)
endef

$(eval $(golang-package))
