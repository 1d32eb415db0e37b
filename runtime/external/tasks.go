package external

import (
	"context"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

type tasks struct{ wire *wire }

const tasksService = "tasks.v1.Tasks/"

func (t tasks) Get(ctx context.Context, r *tasksapi.GetRequest) (*tasksapi.GetResponse, error) {
	return call(ctx, t.wire, tasksService+"Get", r, new(tasksapi.GetResponse))
}

func (t tasks) List(ctx context.Context, r *tasksapi.ListTasksRequest) (*tasksapi.ListTasksResponse, error) {
	return call(ctx, t.wire, tasksService+"List", r, new(tasksapi.ListTasksResponse))
}

func (t tasks) Create(ctx context.Context, r *tasksapi.CreateTaskRequest) (*tasksapi.CreateTaskResponse, error) {
	return call(ctx, t.wire, tasksService+"Create", r, new(tasksapi.CreateTaskResponse))
}

func (t tasks) Start(ctx context.Context, r *tasksapi.StartRequest) (*tasksapi.StartResponse, error) {
	return call(ctx, t.wire, tasksService+"Start", r, new(tasksapi.StartResponse))
}

func (t tasks) Wait(ctx context.Context, r *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error) {
	return call(ctx, t.wire, tasksService+"Wait", r, new(tasksapi.WaitResponse))
}

func (t tasks) Delete(ctx context.Context, r *tasksapi.DeleteTaskRequest) (*tasksapi.DeleteResponse, error) {
	return call(ctx, t.wire, tasksService+"Delete", r, new(tasksapi.DeleteResponse))
}

func (t tasks) Kill(ctx context.Context, r *tasksapi.KillRequest) error {
	return do(ctx, t.wire, tasksService+"Kill", r)
}

func (t tasks) Resume(ctx context.Context, r *tasksapi.ResumeTaskRequest) error {
	return do(ctx, t.wire, tasksService+"Resume", r)
}

func (t tasks) Exec(ctx context.Context, r *tasksapi.ExecProcessRequest) error {
	return do(ctx, t.wire, tasksService+"Exec", r)
}

func (t tasks) DeleteProcess(ctx context.Context, r *tasksapi.DeleteProcessRequest) (*tasksapi.DeleteResponse, error) {
	return call(ctx, t.wire, tasksService+"DeleteProcess", r, new(tasksapi.DeleteResponse))
}

func (t tasks) ResizePty(ctx context.Context, r *tasksapi.ResizePtyRequest) error {
	return do(ctx, t.wire, tasksService+"ResizePty", r)
}

func (t tasks) CloseIO(ctx context.Context, r *tasksapi.CloseIORequest) error {
	return do(ctx, t.wire, tasksService+"CloseIO", r)
}

// do is a call whose answer says nothing.
func do(ctx context.Context, w *wire, m method, in proto.Message) error {
	_, err := call(ctx, w, m, in, new(emptypb.Empty))
	return err
}
