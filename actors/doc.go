// Package actors runs the long-lived roles of a node (replay node, rollout
// worker, learner, scheduler) as supervised Proto.Actor processes.
//
// An actor here is a shell: it owns one loop, answers control messages (Drain,
// Query) from its mailbox and turns the loop's error into a supervised restart
// with exponential backoff. Decisions live below, in rollout, learner, replay
// and cluster; bytes never travel through a mailbox.
//
// A role's loop ends in one of three ways. Returning nil means the work is
// done: the actor stops and Handle.Done closes. Returning after Drain (or
// after the system closes) is a clean stop, whatever the error. Any other
// error is a failure: the loop is started again after a delay, until it has
// failed more often than Restart.Max within Restart.Within; then the actor
// stops and Handle.Err says why.
package actors
