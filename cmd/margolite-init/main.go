// Command margolite-init is process 1 of containers of services with init: it runs the command, passes signals on to
// it, buries the processes that lose their parents, and ends as the command ends. It takes the place of docker-init, and
// is started as it is: docker-init -- COMMAND [ARGUMENT...]; with -i in front it holds the standard input of the command
// open. Where the shim is not ours, a second one keeps what a container prints: see [log.Serve].
package main

import (
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unsafe"

	"github.com/margolite/margolite/runtime/log"
)

const (
	cannotRun = 126 // the codes of shells
	notFound  = 127
	signalled = 128 // and the number of the signal

	shell       = "/bin/sh"
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

func main() {
	log.Serve(os.Args[1:])
	os.Exit(run(os.Args[1:]))
}

// run runs the command and returns the code to end with.
func run(command []string) int {
	held := false
	if len(command) > 0 && command[0] == "-i" {
		held, command = true, command[1:]
	}
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		return complain("no command; usage: docker-init [-i] -- COMMAND [ARGUMENT...]", 1)
	}
	if os.Getpid() != 1 { // in a namespace of somebody else
		const becomeSubreaper = 36 // PR_SET_CHILD_SUBREAPER
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, becomeSubreaper, 1, 0)
	}
	// Before the command: no signal and no end is missed. One that finds
	// another of its kind in the channel is not missed either.
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGCHLD)
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)

	child, err := start(command, held)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return complain("cannot run "+command[0]+": "+err.Error(), notFound)
	case err != nil:
		return complain("cannot run "+command[0]+": "+err.Error(), cannotRun)
	}
	for {
		select {
		case <-ends:
			if code, ended := bury(child); ended {
				return code
			}
		case s := <-signals:
			if s, ok := s.(syscall.Signal); ok && meant(s) {
				_ = syscall.Kill(child, s) // has ended, and its end is on its way
			}
		}
	}
}

// meant tells signals for the command from those for this process: the ends of
// children, those of a terminal that the command has now, and the one by which
// Go's scheduler interrupts itself.
func meant(s syscall.Signal) bool {
	switch s {
	case syscall.SIGCHLD, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGURG:
		return false
	}
	return true
}

// bury takes note of all processes that ended, and tells how the command did.
func bury(child int) (code int, ended bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || pid <= 0:
			return code, ended
		case pid == child && status.Signaled():
			code, ended = signalled+int(status.Signal()), true
		case pid == child:
			code, ended = status.ExitStatus(), true
		}
	}
}

// start runs the command as the first process of a group of its own, which gets
// the terminal where there is one. It looks for it as execvp does. Where its standard
// input is held, it never comes to the end of that.
func start(command []string, held bool) (pid int, err error) {
	attributes := &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	}
	if held {
		var ends [2]int
		if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
			return 0, err
		}
		attributes.Files[0] = uintptr(ends[0])
	}
	if hasTerminal() {
		attributes.Sys = &syscall.SysProcAttr{Foreground: true, Ctty: 0}
	}
	err = syscall.ENOENT
	for _, program := range candidates(command[0]) {
		pid, tried := syscall.ForkExec(program, command, attributes)
		if errors.Is(tried, syscall.ENOEXEC) { // a script that does not name its shell
			pid, tried = syscall.ForkExec(shell, append([]string{shell, program}, command[1:]...), attributes)
		}
		switch {
		case tried == nil:
			return pid, nil
		case errors.Is(tried, syscall.ENOENT), errors.Is(tried, syscall.ENOTDIR):
		default:
			err = tried
		}
		if err != syscall.ENOENT && !errors.Is(err, syscall.EACCES) {
			break
		}
	}
	return 0, err
}

func candidates(name string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	path, set := os.LookupEnv("PATH")
	if !set {
		path = defaultPath
	}
	var all []string
	for _, dir := range strings.Split(path, ":") {
		if dir == "" {
			dir = "."
		}
		all = append(all, dir+"/"+name)
	}
	return all
}

func hasTerminal() bool {
	var group int32
	_, _, err := syscall.Syscall(syscall.SYS_IOCTL, 0, syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	return err == 0
}

func complain(text string, code int) int {
	_, _ = os.Stderr.WriteString("docker-init: " + text + "\n")
	return code
}
