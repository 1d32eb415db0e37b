package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tellTimeout bounds how long a service manager may block a notification.
const tellTimeout = time.Second

// service is the manager that started this process, if it supports sd_notify(3), as systemd does.
type service struct {
	conn     net.Conn      // nil: no notifications
	watchdog time.Duration // it ends us unless notified within this; 0: never
	logger   *slog.Logger
}

// openService finds the service manager and unsets its variables, so that shims do not notify it.
func openService(env []string) *service {
	s := &service{logger: slog.New(slog.DiscardHandler)}
	socket, _ := lookup(env, "NOTIFY_SOCKET")
	usec, _ := lookup(env, "WATCHDOG_USEC")
	pid, _ := lookup(env, "WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // cannot fail for valid names
	}
	if socket == "" {
		return s
	}
	conn, err := net.Dial("unixgram", socket) // abstract names start with @ here too
	if err != nil {
		return s // it will notice the missing notifications
	}
	s.conn = conn
	if n, err := strconv.ParseInt(usec, 10, 64); err == nil && n > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		s.watchdog = time.Duration(n) * time.Microsecond
	}
	return s
}

// tell sends NAME=value notifications of sd_notify(3). A failure does not matter.
func (s *service) tell(what ...string) {
	if s.conn == nil {
		return
	}
	err := s.conn.SetWriteDeadline(time.Now().Add(tellTimeout))
	if err == nil {
		_, err = s.conn.Write([]byte(strings.Join(what, "\n")))
	}
	if err != nil {
		s.logger.Debug("cannot notify the service manager", "what", what[0], "error", err)
	}
}

func (s *service) ready(status string) { s.tell("READY=1", "STATUS="+status) }

// reloading reports that a configuration is being applied, until ready is reported again.
func (s *service) reloading() {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // every Linux has it
	s.tell("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000), "STATUS=reloading the configuration")
}

func (s *service) stopping() { s.tell("STOPPING=1", "STATUS=stopping; workloads keep running") }

func (s *service) alive() { s.tell("WATCHDOG=1") }

func (s *service) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}
