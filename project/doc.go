// Package project is the façade over a training run's life: its configuration,
// the roles it consists of and how they are joined in one process or many, and
// what is told at the end.
//
// A run is described by one YAML file decoded onto documented defaults
// (Config). The resolved configuration travels with the run in the replay
// store, so that every worker and learner, on whatever machine and after
// whatever crash, reads the same one.
package project
