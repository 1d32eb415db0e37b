// Package pace decides when the WFM may be called, and when it should be: how
// often the desired state is asked for, how long to wait after what failed, and
// when nothing at all may be sent. It owns these decisions and makes no request.
//
// [Polls] plans the polls: the interval (POL-04), the windows (POL-03), and the
// back-off that follows from an answer (ERR-05, ERR-06). [Silence] is shared by
// everybody who calls the WFM: it holds all of them back for as long as the WFM
// asked for (ERR-04), also over a restart, and during downtime (POL-01).
//
// # Many devices
//
// A fleet must not arrive at once, whatever brought its devices into step. The
// first poll of a process comes within ten seconds and the second anywhere
// within the interval; after failures the wait is drawn from zero up to a bound
// that doubles; where a window opens, a downtime or a silence ends, what was due
// meanwhile is spread again.
//
// # Clocks
//
// Every wait is measured on a clock that cannot be set. Windows and downtime are
// hours of the day and depend on the one that can: they are looked at again
// every minute, so that a clock which is corrected holds nobody back for longer.
package pace
