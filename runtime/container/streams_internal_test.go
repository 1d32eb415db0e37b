package container

import (
	"os"
	"testing"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/log"
)

// What a service prints takes no more of the device than the site allows, whatever its
// logging options say.
func TestServiceGetsNoMoreLogThanTheSiteGives(t *testing.T) {
	site := log.Keep{MaxSize: 2 << 20, MaxFile: 3}
	p := &paths{Options{RunDir: t.TempDir(), LogKeep: site}}
	request := &tasksapi.CreateTaskRequest{ContainerID: "web"}
	check(t, p.connect(request, Details{Logging: compose.Logging{MaxSize: 10 << 30, MaxFile: 100}}))
	if _, keep, ok := log.ParseURI(request.Stdout); !ok || keep != site || request.Stderr != request.Stdout {
		t.Errorf("output goes to %s and %s", request.Stdout, request.Stderr)
	}
	for tty, want := range map[bool]string{false: "", true: os.DevNull} { // what a terminal shows has to go somewhere
		var request tasksapi.CreateTaskRequest
		err := p.connect(&request, Details{TTY: tty, Logging: compose.Logging{None: true}})
		if err != nil || request.Stdout != want || request.Stderr != "" {
			t.Errorf("without a log, of a terminal: %v: output goes to %q and %q, %v", tty, request.Stdout, request.Stderr, err)
		}
	}
}
