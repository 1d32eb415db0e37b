// Package arm boots the machines that margolite is for: Debian for arm64 and for
// armhf with its own kernel and systemd, in 256 MB of memory, emulated by
// qemu-system. The package that `make packages` made is installed there, enrolled
// and given an application by a WFM on this side. Its update keeps the volume,
// the power is cut, and everything comes back without the WFM; the removal and the
// purge leave nothing.
//
// `make test-arm` runs it, with the build tag armboot, the directory of the packages
// in MARGOLITE_PACKAGES and that of the logs in MARGOLITE_LOGS: of each machine its
// console and its journal. The test logs what took how long, and the memory that was
// left. It needs root, and the network once: Debian's packages become a disk that
// is kept below the user's cache directory, in margolite-test. To have a newer
// Debian, delete that.
package arm
