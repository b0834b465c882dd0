package actors

import "errors"

// Permanent marks an error that a restart cannot cure: the role that returns it
// is given up at once, with that error. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// isPermanent says whether a failure's reason was marked.
func isPermanent(reason any) bool {
	err, ok := reason.(error)
	var p permanent
	return ok && errors.As(err, &p)
}
