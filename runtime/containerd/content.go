package containerd

import (
	"context"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ContentStore keeps blobs by their digests.
type ContentStore interface {
	Info(context.Context, digest.Digest) (ContentInfo, error)
	// Label sets labels of a blob; those with an empty value go. Others stay.
	Label(context.Context, digest.Digest, map[string]string) error
	Delete(context.Context, digest.Digest) error
	// Open reads a blob within ctx. It has to be closed.
	Open(context.Context, digest.Digest) (Blob, error)

	// Writer goes on with the ingest of a reference, or begins one, within ctx.
	// desc is what is to come of it: its size and digest, where they are known.
	// The error is AlreadyExists where the blob is there. Only one writer may
	// have an ingest at a time; others get Unavailable.
	Writer(ctx context.Context, ref string, desc v1.Descriptor) (Writer, error)
	// Status is how far the ingest of a reference has come.
	Status(ctx context.Context, ref string) (Ingest, error)
	Ingests(ctx context.Context, filters ...string) ([]Ingest, error)
	// Abort drops an ingest.
	Abort(ctx context.Context, ref string) error
}

// ContentInfo is what is known of a blob.
type ContentInfo struct {
	Digest    digest.Digest
	Size      int64 // bytes
	CreatedAt time.Time
	UpdatedAt time.Time
	Labels    map[string]string
}

// Blob is the content of one.
type Blob interface {
	io.ReaderAt
	io.Closer
	Size() int64 // bytes
}

// Writer adds to an ingest. Close leaves it for another writer to go on with.
type Writer interface {
	io.WriteCloser
	// Offset is how many bytes the ingest has.
	Offset() int64
	// Truncate drops what is beyond size bytes. Zero is the only size that every
	// containerd takes.
	Truncate(size int64) error
	// Commit makes the ingest a blob, where it has this size (0: any) and digest
	// ("": any); AlreadyExists where the blob is there, which ends the ingest, too.
	Commit(ctx context.Context, size int64, expected digest.Digest, labels map[string]string) error
}

// Ingest is a blob that is being written.
type Ingest struct {
	Ref       string
	Offset    int64         // bytes that are there
	Total     int64         // bytes; 0: not known
	Expected  digest.Digest // "": not known, or not told
	StartedAt time.Time
	UpdatedAt time.Time
}
