package control_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

const (
	askStatus = "GET /v1/status HTTP/1.1\r\nHost: m\r\n\r\n"
	askEvents = "GET /v1/events HTTP/1.1\r\nHost: m\r\n\r\n"
	okay      = "HTTP/1.1 200 OK"
	busy      = "HTTP/1.1 503 Service Unavailable"
	timeout   = "HTTP/1.1 408 Request Timeout"
)

// send makes a request on a connection of its own, which ends with the test.
func send(t *testing.T, path, request string) net.Conn {
	t.Helper()
	conn := expect.Value(net.Dial("unix", path))(t)
	t.Cleanup(func() { conn.Close() })
	check(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	expect.Value(io.WriteString(conn, request))(t)
	return conn
}

// answered is the first line of an answer.
func answered(conn net.Conn) string {
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line)
}

// A process that holds all the connections it may have is told so. That others still get
// in is shown by TestSeveralCrowdsKeepNobodyOut, and by test/neighbours for an agent.
func TestConnectionsAreLimited(t *testing.T) {
	_, path := serve(t, &backend{})
	for range 32 {
		expect.Equal(t, answered(send(t, path, askStatus)), okay, "answer")
	}
	expect.Equal(t, answered(send(t, path, askStatus)), busy, "answer to one too many")
}

// A caller that holds every stream, log and poll it can get still has its short requests
// answered, and can have another one when one ends.
func TestRequestsThatLastLeaveRoomForShortOnes(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		most    int
	}{
		"logs":    {"GET /v1/logs?deployment=d&follow=true HTTP/1.1\r\nHost: m\r\n\r\n", 16},
		"polls":   {"POST /v1/sync HTTP/1.1\r\nHost: m\r\n\r\n", 16},
		"streams": {askEvents, 8},
	} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{}, 64)
			client, path := serve(t, &backend{lasting: begun})
			var held net.Conn
			for range c.most {
				held = send(t, path, c.request)
				<-begun
			}
			for range 12 {
				expect.Equal(t, answered(send(t, path, c.request)), busy, "answer to one too many")
			}
			for range 3 {
				expect.Error(t, expect.ErrorOf(client.Status(t.Context())), nil, "status")
				expect.OK(t, client.Approve(t.Context(), control.AnswerRequest{Deployment: "d", Revision: revisionA}))
			}
			check(t, held.Close())
			expect.Eventually(t, "there is room again", func() bool {
				next, answer := send(t, path, c.request), make(chan string, 1)
				go func() { answer <- answered(next) }()
				select {
				case <-begun:
					return true
				case line := <-answer:
					next.Close()
					return line == okay
				}
			})
		})
	}
}

// pipes is a listener of connections in memory, for tests with a fake clock.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.done)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A caller that is slow, or does nothing, is disconnected after some time.
func TestSlowCallersAreLeftAlone(t *testing.T) {
	for _, c := range []struct {
		name, sends string
		after       time.Duration // the connection has ended
		answer      string        // what came until then
	}{
		{"sends nothing", "", 5 * time.Second, ""},
		{"sends half a header", "GET /v1/status HTTP/1.1\r\nHost:", 5 * time.Second, ""},
		{"sends half a body", "POST /v1/sync HTTP/1.1\r\nHost: m\r\nContent-Length: 9\r\n\r\n{", 10 * time.Second, timeout},
		{"sends half a chunk", "POST /v1/hold HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{", 10 * time.Second, timeout},
		{"sends half a body to nowhere", "POST /v2/hold HTTP/1.1\r\nHost: m\r\nContent-Length: 9\r\n\r\n{", 10 * time.Second, timeout},
		{"asks for nothing more", askStatus, 30 * time.Second, okay},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := dialPipe(t, &backend{})
				began := time.Now()
				expect.Value(io.WriteString(conn, c.sends))(t)
				answer, err := io.ReadAll(conn)
				if took := time.Since(began); err != nil || took != c.after {
					t.Errorf("ended after %v with %v, want after %v", took, err, c.after)
				}
				if !strings.HasPrefix(string(answer), c.answer) && c.answer != "" || c.answer == "" && len(answer) > 0 {
					t.Errorf("answered %q", answer)
				}
			})
		})
	}
}

// A caller that does not take its answer does not keep it in memory.
func TestAnswersThatNobodyTakesAreDropped(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		after   time.Duration
	}{
		"a document": {askStatus, 10 * time.Second},
		"events":     {askEvents, 30 * time.Second},
		"an error":   {"GET /nowhere HTTP/1.1\r\nHost: m\r\n\r\n", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := dialPipe(t, &backend{events: make(chan control.Event)})
				expect.Value(io.WriteString(conn, c.request))(t)
				time.Sleep(c.after - time.Second)
				synctest.Wait()
				if n, err := conn.Read(make([]byte, 1)); n != 1 || err != nil {
					t.Fatalf("a second before its time nothing is there: %v", err)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if rest, err := io.ReadAll(conn); err != nil || len(rest) != 0 {
					t.Errorf("after its time there is still %q, %v", rest, err)
				}
			})
		})
	}
}

// dialPipe is a connection in memory to a server for b.
func dialPipe(t *testing.T, b control.Backend) net.Conn {
	t.Helper()
	l := &pipes{make(chan net.Conn), make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- control.NewServer(b, slog.New(slog.DiscardHandler)).Run(ctx, l, nil) }()
	here, there := net.Pipe()
	l.conns <- there
	t.Cleanup(func() {
		here.Close()
		cancel()
		expect.OK(t, <-done)
	})
	return here
}
