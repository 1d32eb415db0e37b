package fault

import (
	"io"
	"net/http"
	"slices"
	"time"
)

// writer bends an answer while it is written. It hides every optional interface
// of the writer below it, so that nothing reaches the connection around it.
type writer struct {
	to      http.ResponseWriter
	request *http.Request
	faults  []Fault
	started bool
	sent    int64 // bytes of the body that the handler has written
}

// begin lets happen what happens before the answer; it says whether there is to
// be one.
func (w *writer) begin() bool {
	ctx := w.request.Context()
	for _, f := range w.faults {
		if f.Kind == Delay && !wait(ctx, f.Wait) {
			return false
		}
	}
	for _, f := range w.faults {
		switch {
		case f.Bytes > 0:
		case f.Kind == Cut:
			return false
		case f.Kind == Reset:
			w.reset()
		case f.Kind == Stall:
			// That the client has left is only noticed once its body is read.
			_, _ = io.Copy(io.Discard, io.LimitReader(w.request.Body, maxDrained))
			<-ctx.Done()
			return false
		}
	}
	return true
}

// maxDrained bounds what is read of a request that is not to be answered.
const maxDrained = 1 << 20

func (w *writer) Header() http.Header { return w.to.Header() }

func (w *writer) WriteHeader(status int) {
	if w.started {
		return
	}
	w.started = true
	for _, f := range w.faults {
		if f.Kind == Clock {
			w.to.Header().Set("Date", time.Now().Add(f.Wait).UTC().Format(http.TimeFormat))
		}
	}
	w.to.WriteHeader(status)
}

// Write sends data piece by piece, each piece ending where something happens.
func (w *writer) Write(data []byte) (int, error) {
	if !w.started {
		w.WriteHeader(http.StatusOK)
	}
	written := 0
	for written < len(data) {
		piece := data[written:]
		piece = piece[:w.next(int64(len(piece)))]
		if err := w.send(piece); err != nil {
			return written, err
		}
		written += len(piece)
		w.sent += int64(len(piece))
		w.cutHere()
	}
	return written, nil
}

// next is the length of the longest piece that no fault interrupts.
func (w *writer) next(n int64) int64 {
	for _, f := range w.faults {
		switch f.Kind {
		case Slow:
			n = min(n, max(1, f.Bytes/piecesPerSecond))
		case Drip:
			n = min(n, f.Bytes)
		case Cut, Reset, Stall:
			if left := f.Bytes - w.sent; left > 0 {
				n = min(n, left)
			}
		}
	}
	return n
}

// piecesPerSecond is how smoothly a slow answer flows.
const piecesPerSecond = 10

func (w *writer) send(piece []byte) error {
	for _, f := range w.faults {
		if at := f.Bytes - w.sent; f.Kind == Corrupt && at >= 0 && at < int64(len(piece)) {
			piece = slices.Clone(piece)
			piece[at] ^= 1
		}
	}
	if _, err := w.to.Write(piece); err != nil {
		return err
	}
	for _, f := range w.faults {
		pause := f.Wait
		switch f.Kind {
		case Slow:
			pause = time.Duration(len(piece)) * time.Second / time.Duration(f.Bytes)
		case Drip:
		default:
			continue
		}
		w.flush()
		if !wait(w.request.Context(), pause) {
			return w.request.Context().Err()
		}
	}
	return nil
}

// cutHere ends the connection, or what comes on it, when as much has been sent
// as a fault allows.
func (w *writer) cutHere() {
	for _, f := range w.faults {
		if f.Bytes == 0 || w.sent < f.Bytes {
			continue
		}
		switch f.Kind {
		case Cut:
			w.flush() // what was sent is to arrive
			panic(http.ErrAbortHandler)
		case Reset:
			w.flush()
			w.reset()
		case Stall:
			w.flush()
			<-w.request.Context().Done()
			panic(http.ErrAbortHandler)
		}
	}
}

func (w *writer) flush() {
	_ = http.NewResponseController(w.to).Flush() // without a flusher the bytes come later
}
