// Package sim runs the coordination of a cluster in virtual time: thousands of
// workers and several learners against the fold that every replay node runs
// ([replay.Apply] over [replay.NewMemKV], untouched), with long-tailed rollouts
// and faults drawn from a seed.
//
// Everything happens on one goroutine, in the order of an event queue, with a
// generator of its own: a seed is a history, and a failing one comes out the
// same as often as it is run (on one architecture: lengths are drawn with
// floating point). There is no network and no disk; what is imitated of them is
// what the fold and its callers can see: messages that are late, lost or come
// twice, a leader that changes with commands on their way (some of which were
// decided, which nobody is told) and with another clock, processes that die,
// hang, are cut off or come back under their name.
//
// Workers and learners follow the protocols of rollout.Worker and learner.Loop
// (what is asked, repeated, given back and abandoned, and when), written as
// events. What they do with the store's answers is audited by bookkeeping that
// is not the fold's: see [Violation] for the list.
package sim
