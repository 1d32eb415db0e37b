package medium

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// tries bounds how often a loop device is looked for that is then taken by
// somebody else.
const tries = 20

// Mounted is the file system of a disk, where it is mounted.
type Mounted struct {
	dir  string
	file *file
	node string // of the block device
}

// Format makes an image of an ext4 of so many bytes in a file, for Load.
func Format(image string, bytes int64) error {
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, bytes); err != nil {
		return err
	}
	out, err := exec.Command("mkfs.ext4", "-q", "-b", "4096", "-J", "size=8", "-m", "0",
		"-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", image).CombinedOutput() // lazily is later, in the background
	if err != nil {
		return fmt.Errorf("cannot make a file system: %w: %s", err, out)
	}
	return nil
}

// Check repairs the file system of an image, as a device does when it boots
// after an error. It fails for what is beyond repair.
func Check(image string) error {
	out, err := exec.Command("e2fsck", "-f", "-y", image).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode()&^3 == 0 { // 1: repaired, 2: and wants a reboot
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot repair the file system: %w: %s", err, out)
	}
	return nil
}

// Mount makes a block device of the disk and mounts its ext4 in a directory. The
// file at path, which is made, stands for the disk as long as it is used.
func (d *Disk) Mount(path, dir string) (m *Mounted, err error) {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	m = &Mounted{dir: dir}
	if m.file, err = show(d, path); err != nil {
		return nil, err
	}
	loop, err := m.attach(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a block device of %s: %w", path, err), m.file.close())
	}
	// A file system that found an error is not written to any more.
	err = unix.Mount(m.node, dir, "ext4", unix.MS_NOATIME, "errors=remount-ro")
	// From here on the file system alone has the device.
	if err = errors.Join(err, loop.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot mount %s: %w", m.node, err), m.file.close())
	}
	return m, nil
}

// attach finds a loop device for the file. It detaches itself with its last user.
func (m *Mounted) attach(path string) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	// As the kernel opens files and not as package os does: that would poll it,
	// by a call during which this program cannot answer.
	backing, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(backing)
	for range tries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		m.node = fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(m.node, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
			Fd: uint32(backing), Size: BlockBytes,
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO},
		})
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, errors.New("every loop device is taken at once by others")
}

// Unmount takes the file system away, once nobody uses it. What it still holds
// is written first.
func (m *Mounted) Unmount() error {
	if err := unix.Unmount(m.dir, 0); err != nil {
		return fmt.Errorf("cannot unmount %s: %w", m.dir, err)
	}
	return m.file.close()
}

// Forget takes the file system away whoever uses it, as it goes with the power;
// its disk has none any more (Cut).
func (m *Mounted) Forget() error {
	err := unix.Unmount(m.dir, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		err = nil // somebody did before
	}
	return errors.Join(err, m.file.close())
}
