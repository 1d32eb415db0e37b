// Package pace decides when the WFM may be called and when it should be: how often the desired
// state is polled, how long to wait after failures, and when nothing may be sent. It makes no
// request.
//
// [Polls] plans the polls: the interval (POL-04), the windows (POL-03), and the back-off after an
// answer (ERR-05, ERR-06). [Silence] is shared by all callers of the WFM: it holds them back for as
// long as the WFM asked (ERR-04), even across a restart, and during downtime (POL-01).
//
// # Many devices
//
// A fleet must not arrive at once, whatever synchronised its devices. The first poll of a process
// comes within ten seconds, the second anywhere within the interval. After failures the wait is
// random between zero and a bound that doubles. When a window opens, or a downtime or silence ends,
// overdue calls are spread again.
//
// # Clocks
//
// Waits are measured on a clock that cannot be set. Windows and downtime depend on the wall clock:
// they are checked again every minute, so that a corrected clock holds back nobody for longer.
package pace
