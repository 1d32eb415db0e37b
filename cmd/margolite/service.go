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

// tellTimeout bounds the time for which a service manager may keep us from telling
// it something.
const tellTimeout = time.Second

// service is the service manager that started this process, if it is one that
// wants to hear how it fares: systemd, and whatever else knows sd_notify(3).
type service struct {
	conn     net.Conn      // nil: nobody wants to hear
	watchdog time.Duration // it hears from us within this, or ends us; 0: it does not
	logger   *slog.Logger
}

// openService finds the service manager. Its variables are taken out of the
// environment: what is said to it has to come from here, and not from a shim.
func openService(env []string) *service {
	s := &service{logger: slog.New(slog.DiscardHandler)}
	socket, _ := lookup(env, "NOTIFY_SOCKET")
	usec, _ := lookup(env, "WATCHDOG_USEC")
	pid, _ := lookup(env, "WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // cannot fail for a name like these
	}
	if socket == "" {
		return s
	}
	conn, err := net.Dial("unixgram", socket) // an abstract one begins with @ here as well
	if err != nil {
		return s // it will find out that we do not talk to it
	}
	s.conn = conn
	if n, err := strconv.ParseInt(usec, 10, 64); err == nil && n > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		s.watchdog = time.Duration(n) * time.Microsecond
	}
	return s
}

// tell says something, each a NAME=value of sd_notify(3). One that does not listen
// keeps nobody from working.
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

// reloading says that a configuration is being taken over, until ready is said
// again.
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
