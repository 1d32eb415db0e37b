package control_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

// The test program is a crowd where these are set: so many connections to the
// socket, kept open until its input ends. It prints how many were answered what.
const (
	crowdSocket  = "MARGOLITE_TEST_CROWD"
	crowdCount   = "MARGOLITE_TEST_CROWD_COUNT"
	crowdRequest = "MARGOLITE_TEST_CROWD_REQUEST"
)

func TestMain(m *testing.M) {
	if os.Getenv(crowdSocket) != "" {
		if err := beCrowd(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func beCrowd() error {
	count, err := strconv.Atoi(os.Getenv(crowdCount))
	if err != nil {
		return err
	}
	conns := make([]net.Conn, 0, count)
	for len(conns) < count {
		conn, err := net.Dial("unix", os.Getenv(crowdSocket))
		if errors.Is(err, syscall.EAGAIN) {
			runtime.Gosched() // more than the kernel lets wait
			continue
		}
		if err != nil {
			return err
		}
		_, _ = io.WriteString(conn, os.Getenv(crowdRequest)) // who is shut out notices when it reads
		conns = append(conns, conn)
	}
	answers := map[string]int{}
	for _, conn := range conns {
		if os.Getenv(crowdRequest) == "" {
			break // there will be no answers
		}
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		line, _ := bufio.NewReader(conn).ReadString('\n') // none says enough
		answers[strings.TrimSpace(strings.TrimPrefix(line, "HTTP/1.1 "))]++
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(conns)
	return err
}

// crowd lets a process of user uid connect count times and make the same request
// each time. It returns how often it was answered what, and ends the process
// with end.
func crowd(t *testing.T, socket string, uid, count int, request string) (answers map[string]int, end func()) {
	t.Helper()
	program := exec.Command("/proc/self/exe")
	program.Env = append(os.Environ(), crowdSocket+"="+socket, crowdCount+"="+strconv.Itoa(count), crowdRequest+"="+request)
	program.Stderr = os.Stderr
	if uid != os.Getuid() {
		program.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	in := expect.Value(program.StdinPipe())(t)
	out := expect.Value(program.StdoutPipe())(t)
	check(t, program.Start())
	end = func() {
		in.Close()
		_ = program.Wait()
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &answers)
	}
	if err != nil {
		end()
		t.Fatalf("the crowd said %q: %v", line, err)
	}
	return answers, end
}

// openTo lets everybody who is in the group open the socket, and everybody is.
func openTo(t *testing.T, path string) {
	t.Helper()
	for _, p := range []string{filepath.Dir(filepath.Dir(path)), filepath.Dir(path), path} {
		check(t, os.Chmod(p, 0o777))
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

const (
	silence   = 5 * time.Second // after which a caller without a request loses his place
	nobody    = 65534
	askStatus = "GET /v1/status HTTP/1.1\r\nHost: m\r\n\r\n"
	askEvents = "GET /v1/events HTTP/1.1\r\nHost: m\r\n\r\n"
	okay      = "200 OK"
	busy      = "503 Service Unavailable"
)

// However many connections one user, or one process of root, has: whoever else
// asks is answered at once, and it costs little.
func TestManyConnectionsKeepNobodyOut(t *testing.T) {
	const many = 2000
	for name, uid := range map[string]int{"of another user": nobody, "of one process": os.Getuid()} {
		for what, request := range map[string]string{"idle": askStatus, "streams": askEvents, "silent": ""} {
			t.Run(what+" "+name, func(t *testing.T) {
				if uid != os.Getuid() && os.Getuid() != 0 {
					t.Skip("needs root, to be another user")
				}
				client, path := serve(t, &backend{events: make(chan control.Event)})
				openTo(t, path)
				before := heap()
				answers, end := crowd(t, path, uid, many, request)
				defer end()
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), silence/2)
					if _, err := client.Status(ctx); err != nil {
						t.Fatalf("while they are there: %v", err)
					}
					cancel()
				}
				if after := heap(); after > before+8<<20 {
					t.Errorf("they cost %d KiB", (after-before)>>10)
				}
				t.Logf("answers: %v", answers)
				switch most := map[string]int{"idle": 32, "streams": 8}[what]; {
				case request != "" && (answers[okay] == 0 || answers[okay] > most):
					t.Errorf("%d were answered, want some, and at most %d", answers[okay], most)
				case request != "" && answers[busy] == 0:
					t.Error("nobody was told that there is no room")
				}

				// When they are gone, there is room for others of them.
				end()
				for deadline := time.Now().Add(10 * time.Second); ; {
					answers, end := crowd(t, path, uid, 1, askEvents)
					end()
					if answers[okay] == 1 {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("who comes afterwards is answered %v", answers)
					}
				}
			})
		}
	}
}

// A caller that has every stream, log and poll that it can get still has its short
// requests answered.
func TestRequestsThatLastLeaveRoomForShortOnes(t *testing.T) {
	for name, request := range map[string]string{
		"logs":  "GET /v1/logs?deployment=d&follow=true HTTP/1.1\r\nHost: m\r\n\r\n",
		"polls": "POST /v1/sync HTTP/1.1\r\nHost: m\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{}, 64)
			client, path := serve(t, &backend{lasting: begun})
			ask := func() net.Conn {
				conn := expect.Value(net.Dial("unix", path))(t)
				t.Cleanup(func() { conn.Close() })
				expect.Value(io.WriteString(conn, request))(t)
				return conn
			}
			for range 16 {
				ask()
				<-begun
			}
			// One that is too many is told so; it does not wait.
			conns := make([]net.Conn, 12)
			for i := range conns {
				conns[i] = ask()
			}
			for _, conn := range conns {
				check(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
				if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, busy) {
					t.Fatalf("one too many was answered %q (%v)", line, err)
				}
			}
			for range 3 {
				expect.Error(t, expect.ErrorOf(client.Status(t.Context())), nil, "status")
				expect.OK(t, client.Approve(t.Context(), control.AnswerRequest{Deployment: "d", Revision: revisionA}))
			}
		})
	}
}

// pipes are connections that need no kernel, so that time can be made up.
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

// A caller that is slow, or does nothing, is left alone after some time.
func TestSlowCallersAreLeftAlone(t *testing.T) {
	for _, c := range []struct {
		name, sends string
		after       time.Duration // the connection has ended
		answer      string        // what came until then
	}{
		{"sends nothing", "", 5 * time.Second, ""},
		{"sends half a header", "GET /v1/status HTTP/1.1\r\nHost:", 5 * time.Second, ""},
		{"sends half a body", "POST /v1/sync HTTP/1.1\r\nHost: m\r\nContent-Length: 9\r\n\r\n{", 10 * time.Second, "408 Request Timeout"},
		{"sends half a chunk", "POST /v1/hold HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{", 10 * time.Second, "408 Request Timeout"},
		{"sends half a body to nowhere", "POST /v2/hold HTTP/1.1\r\nHost: m\r\nContent-Length: 9\r\n\r\n{", 10 * time.Second, "408 Request Timeout"},
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
				if !strings.HasPrefix(string(answer), strings.TrimSpace("HTTP/1.1 "+c.answer)) && c.answer != "" || c.answer == "" && len(answer) > 0 {
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

// dialPipe is a connection to a server for b, both in a bubble of time.
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
