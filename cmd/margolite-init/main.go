// Command margolite-init is process 1 in containers of services with init: it runs the command,
// forwards signals to it, reaps orphaned processes, and exits with the command's result. It
// replaces docker-init and is started alike: docker-init -- COMMAND [ARGUMENT...]. With -i in front
// it holds the command's standard input open. If the shim is not ours, a second process keeps a
// container's output: see [log.Serve].
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
	cannotRun = 126 // shell exit codes
	notFound  = 127
	signalled = 128 // plus the signal number

	shell       = "/bin/sh"
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

func main() {
	log.Serve(os.Args[1:])
	os.Exit(run(os.Args[1:]))
}

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
	if os.Getpid() != 1 { // in another process's namespace
		const becomeSubreaper = 36 // PR_SET_CHILD_SUBREAPER
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, becomeSubreaper, 1, 0)
	}
	// Before the command starts, so that no signal or end is missed. Signals of a kind that is
	// already in the channel may be dropped.
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
				_ = syscall.Kill(child, s) // an error means it has ended
			}
		}
	}
}

// meant selects signals for the command. The others are for this process: ends of children, those
// of a terminal that now belongs to the command, and the one with which Go's scheduler preempts.
func meant(s syscall.Signal) bool {
	switch s {
	case syscall.SIGCHLD, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGURG:
		return false
	}
	return true
}

// bury reaps all ended processes, and reports how the command ended.
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

// start runs the command as the first process of its own group, which gets the terminal if there is
// one. It finds the program as execvp does. If standard input is held, the command never reads its
// end.
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
		if errors.Is(tried, syscall.ENOEXEC) { // a script without a shebang
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
