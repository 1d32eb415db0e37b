# Who adds the layer gets no other kernel by that alone: only distributions that ask
# for virtualization, as meta-virtualization wants it, get the options.
include ${@bb.utils.contains('DISTRO_FEATURES', 'virtualization', 'linux-margolite.inc', '', d)}
