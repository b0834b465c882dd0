// Package watch warns early that a run goes wrong: a pure function over the
// history of step metrics, so that the terminal, the learner's log, summary.json
// and report.html say the same. Each warning names the likely cause and a
// remedy, and is given once when it begins; it may come again only after its
// condition has been away for Window steps.
//
// The history begins at step 1. A metric that a step lacks is no evidence.
package watch
