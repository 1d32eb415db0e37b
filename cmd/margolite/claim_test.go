package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
)

// claimScene makes the test binary a process that plays with the claim: "held by
// UID" tries to claim while another process, of that user, has the claim;
// "hold UID" is that process. "held by -1" is root as a workload has it, without
// CAP_SYS_ADMIN.
const claimScene = "MARGOLITE_TEST_CLAIM"

func playClaim(scene string) {
	var uid int
	if _, err := fmt.Sscanf(scene, "hold %d", &uid); err == nil {
		if uid < 0 {
			runtime.LockOSThread() // whose capabilities the next program gets
			err := errors.Join(unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0),
				syscall.Exec("/proc/self/exe", os.Args, []string{claimScene + "=hold 0"}))
			fmt.Println(err)
			return
		}
		if err := syscall.Setuid(uid); err != nil {
			fmt.Println(err)
			return
		}
		held, err := claim()
		fmt.Printf("%T %v\n", held, err)
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until the other one is done
		return
	}
	if _, err := fmt.Sscanf(scene, "held by %d", &uid); err != nil {
		panic(err)
	}
	holder := exec.Command("/proc/self/exe")
	holder.Env = append(os.Environ(), fmt.Sprintf("%s=hold %d", claimScene, uid))
	out, errOut := holder.StdoutPipe()
	in, errIn := holder.StdinPipe()
	if err := errors.Join(errOut, errIn, holder.Start()); err != nil {
		panic(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "*net.UnixListener <nil>\n" {
		fmt.Printf("the holder holds nothing: %s", line)
		return
	}
	_, err := claim()
	fmt.Printf("%v (process %d)\n", err, holder.Process.Pid)
	in.Close()
	_ = holder.Wait()
}

// Anybody may open the socket of the claim, also a workload in the network of the
// device. Only root keeps root out with it, and only as whoever could have containers.
func TestOnlyWhoCouldHaveContainersKeepsOthersOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	play := func(scene string) string {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), claimScene+"="+scene)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET} // claims of the machine are not disturbed
		out, err := cmd.CombinedOutput()
		expect.Require(t, err == nil, "%v: %s", err, out)
		return string(out)
	}
	expect.Contains(t, play("held by 65534"), "<nil> ", "beside an ordinary user")
	expect.Contains(t, play("held by -1"), "<nil> ", "beside root in a container")
	text, process, _ := strings.Cut(strings.TrimSpace(play("held by 0")), " does ")
	expect.Equal(t, text, "cannot manage the containers of this machine: another margolite "+process, "beside root")
}
