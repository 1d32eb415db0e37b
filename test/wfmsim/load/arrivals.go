package load

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Next says when a device polls again: now is when the last poll was answered,
// or when the device began, and failed is what became of it. It belongs to one
// device and may keep a state.
type Next func(now time.Time, failed bool) time.Time

// Fixed polls at a fixed rate, whatever happens.
func Fixed(interval time.Duration) Next {
	return func(now time.Time, _ bool) time.Time { return now.Add(interval) }
}

// Outage is a fleet in simulated time whose WFM is away for a while.
type Outage struct {
	Devices int
	Begin   time.Time     // of the simulation, when all devices start together
	From    time.Duration // the WFM is gone from here on
	To      time.Duration // and back from here on
	Watch   time.Duration // for so long after that
	Width   time.Duration // of the bars of the histogram; 0: a second
	Pace    func(device int) Next
	// Failure is how long it takes a device to notice that nobody is there.
	Failure time.Duration
}

// maxPolls bounds a simulation.
const maxPolls = 50_000_000

// Histogram is when polls arrive after an outage.
type Histogram struct {
	Width  time.Duration `json:"widthNs"`
	Counts []int         `json:"counts"`
	// Recovered says, for each device, how long after the end of the outage it
	// was served, sorted; those that were not are missing.
	Recovered []time.Duration `json:"-"`
	Devices   int             `json:"devices"`
	During    int             `json:"during"` // polls that failed
}

// Arrivals plays an outage. The same paces give the same histogram.
func Arrivals(o Outage) (*Histogram, error) {
	if o.Width == 0 {
		o.Width = time.Second
	}
	if o.Devices < 1 || o.From < 0 || o.To <= o.From || o.Watch <= 0 || o.Width <= 0 || o.Watch/o.Width > 1_000_000 {
		return nil, fmt.Errorf("cannot play an outage of %d devices from %s to %s, watched for %s", o.Devices, o.From, o.To, o.Watch)
	}
	h := &Histogram{Width: o.Width, Counts: make([]int, o.Watch/o.Width), Devices: o.Devices}
	back, end := o.Begin.Add(o.To), o.Begin.Add(o.To+o.Watch)
	due := &queue{}
	paces := make([]Next, o.Devices)
	served := make([]bool, o.Devices)
	for i := range paces {
		paces[i] = o.Pace(i)
		*due = append(*due, turn{paces[i](o.Begin, false), i})
	}
	heap.Init(due)
	for polls := 0; due.Len() > 0; polls++ {
		if polls == maxPolls {
			return nil, fmt.Errorf("cannot play an outage: more than %d polls", maxPolls)
		}
		t := heap.Pop(due).(turn)
		if !t.at.Before(end) {
			continue // watched no longer
		}
		failed := !t.at.Before(o.Begin.Add(o.From)) && t.at.Before(back)
		answered := t.at
		switch {
		case failed:
			h.During++
			answered = answered.Add(o.Failure)
		case !t.at.Before(back):
			if bar := int(t.at.Sub(back) / o.Width); bar < len(h.Counts) {
				h.Counts[bar]++
			}
			if !served[t.device] {
				served[t.device] = true
				h.Recovered = append(h.Recovered, t.at.Sub(back))
			}
		}
		next := paces[t.device](answered, failed)
		if !next.After(answered) {
			return nil, fmt.Errorf("cannot play an outage: device %d polls again without waiting", t.device)
		}
		heap.Push(due, turn{next, t.device})
	}
	slices.Sort(h.Recovered)
	return h, nil
}

// Peak is the highest bar.
func (h *Histogram) Peak() int { return slices.Max(h.Counts) }

// Mean is the height that all bars would have if polls came evenly.
func (h *Histogram) Mean() float64 {
	sum := 0
	for _, n := range h.Counts {
		sum += n
	}
	return float64(sum) / float64(len(h.Counts))
}

// RecoveredWithin is the time by which a share of the devices was served again;
// false where they were not, as long as was watched.
func (h *Histogram) RecoveredWithin(share float64) (time.Duration, bool) {
	n := int(share*float64(h.Devices)+0.999999) - 1
	if n < 0 || n >= len(h.Recovered) {
		return 0, false
	}
	return h.Recovered[n], true
}

// String draws at most 20 bars, of equal time.
func (h *Histogram) String() string {
	const bars, long = 20, 50
	per := max(1, (len(h.Counts)+bars-1)/bars)
	var sums []int
	for chunk := range slices.Chunk(h.Counts, per) {
		sum := 0
		for _, n := range chunk {
			sum += n
		}
		sums = append(sums, sum)
	}
	var text strings.Builder
	highest := max(1, slices.Max(sums))
	for i, sum := range sums {
		fmt.Fprintf(&text, "%8s %6d %s\n", time.Duration(i*per)*h.Width, sum, strings.Repeat("#", sum*long/highest))
	}
	return text.String()
}

// turn is when a device polls.
type turn struct {
	at     time.Time
	device int
}

// queue is ordered by time, and by device at the same time.
type queue []turn

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if c := q[i].at.Compare(q[j].at); c != 0 {
		return c < 0
	}
	return q[i].device < q[j].device
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(turn)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}
